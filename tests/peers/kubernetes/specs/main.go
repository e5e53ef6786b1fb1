// Upstream's end-to-end specs of API machinery, as they are: watches and lists in chunks among them. Ginkgo's flags
// choose those that run, --kubeconfig the API server.
package main

import (
	"flag"
	"os"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	_ "k8s.io/kubernetes/test/e2e/apimachinery"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
)

// A program has no testing.T; the result of RunSpecs says all.
type ended struct{}

func (ended) Fail() {}

func main() {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	framework.AfterReadingAllFlags(&framework.TestContext)
	gomega.RegisterFailHandler(framework.Fail)
	if !ginkgo.RunSpecs(ended{}, "API machinery") {
		os.Exit(1)
	}
}

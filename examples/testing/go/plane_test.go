// Package consumer shows how a Go program that follows Services is tested against a plane of its own.
package consumer

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// startPlane runs a plane that ends with the test, or with the test's process, and returns the way in.
func startPlane(t *testing.T, arguments ...string) *rest.Config {
	t.Helper()
	command := exec.Command("python3", append([]string{"-m", "sliceplane.testing"}, arguments...)...)
	command.Stderr = t.Output()
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close() // the plane ends with its standard input
		command.Wait()
	})
	line, _ := bufio.NewReader(output).ReadString('\n')
	_, kubeconfig, found := strings.Cut(strings.TrimSpace(line), "kubeconfig=")
	if !found {
		t.Fatalf("the plane did not start: %q", line)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

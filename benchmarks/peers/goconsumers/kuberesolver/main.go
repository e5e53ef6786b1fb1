// Program kuberesolver is a gRPC client that resolves one Service with github.com/sercand/kuberesolver, and prints the
// addresses that its balancer is given, as `sliceplane conformance --run program:` wants it.
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/sercand/kuberesolver/v6"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const policy = "print"

func main() {
	if err := follow(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func follow() error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	target := fmt.Sprintf("kubernetes:///%s.%s", os.Getenv("SLICEPLANE_SERVICE"), os.Getenv("SLICEPLANE_NAMESPACE"))
	if port := os.Getenv("SLICEPLANE_PORT"); port != "" {
		target += ":" + port
	}
	balancer.Register(printing{})
	connection, err := grpc.NewClient(target,
		grpc.WithResolvers(kuberesolver.NewBuilder(&api{client, config.Host}, "kubernetes")),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"`+policy+`": {}}]}`))
	if err != nil {
		return err
	}
	fmt.Println("[]") // until it resolves something there is nothing to call
	connection.Connect()
	select {}
}

// api reaches the API server as the kubeconfig says; kuberesolver's own client is for Pods.
type api struct {
	client *http.Client
	host   string
}

func (a *api) Host() string                                     { return a.host }
func (a *api) Do(request *http.Request) (*http.Response, error) { return a.client.Do(request) }
func (a *api) GetRequest(address string) (*http.Request, error) {
	if !strings.HasPrefix(address, a.host) {
		address = a.host + "/" + address
	}
	return http.NewRequest(http.MethodGet, address, nil)
}

// printing is a balancer that connects to nothing.
type printing struct{}

func (printing) Name() string { return policy }
func (printing) Build(balancer.ClientConn, balancer.BuildOptions) balancer.Balancer {
	return printing{}
}
func (printing) UpdateClientConnState(state balancer.ClientConnState) error {
	addresses := []string{}
	for _, address := range state.ResolverState.Addresses {
		addresses = append(addresses, address.Addr)
	}
	slices.Sort(addresses)
	line, err := json.Marshal(slices.Compact(addresses))
	if err == nil {
		fmt.Println(string(line))
	}
	return err
}
func (printing) ResolverError(err error)                                    { fmt.Fprintln(os.Stderr, err) }
func (printing) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}
func (printing) Close()                                                     {}
func (printing) ExitIdle()                                                  {}

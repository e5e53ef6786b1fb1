// Program xds is the peer of benchmarks.http2_push: go-control-plane's linear cache behind its gRPC server.
//
// Usage: xds ENDPOINTS [CERTIFICATE KEY].  It prints the port, and for each line that it reads it changes one endpoint
// of the one ClusterLoadAssignment that it serves.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"net"
	"os"
	"strconv"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

const name = "default/web:http"

// assignment has count endpoints, of which the last has the port that is given.
func assignment(count int, port uint32) *endpoint.ClusterLoadAssignment {
	locality := &endpoint.LocalityLbEndpoints{Locality: &core.Locality{Zone: "a"}}
	for number := range count {
		own := uint32(8080)
		if number == count-1 {
			own = port
		}
		address := &core.SocketAddress{
			Address:       fmt.Sprintf("10.%d.%d.%d", 64+number>>16, number>>8&255, number&255),
			PortSpecifier: &core.SocketAddress_PortValue{PortValue: own},
		}
		locality.LbEndpoints = append(locality.LbEndpoints, &endpoint.LbEndpoint{
			HostIdentifier: &endpoint.LbEndpoint_Endpoint{Endpoint: &endpoint.Endpoint{
				Address: &core.Address{Address: &core.Address_SocketAddress{SocketAddress: address}},
			}},
		})
	}
	return &endpoint.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpoint.LocalityLbEndpoints{locality}}
}

func main() {
	count, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var options []grpc.ServerOption
	if len(os.Args) > 2 {
		certificate, err := tls.LoadX509KeyPair(os.Args[2], os.Args[3])
		if err != nil {
			log.Fatal(err)
		}
		options = append(options, grpc.Creds(credentials.NewServerTLSFromCert(&certificate)))
	}
	linear := cache.NewLinearCache(resource.EndpointType)
	if err := linear.UpdateResource(name, assignment(count, 1)); err != nil {
		log.Fatal(err)
	}
	serving := grpc.NewServer(options...)
	discovery.RegisterAggregatedDiscoveryServiceServer(serving, server.NewServer(context.Background(), linear, nil))
	listening, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		log.Fatal(serving.Serve(listening))
	}()
	fmt.Println(listening.Addr().(*net.TCPAddr).Port)
	lines := bufio.NewScanner(os.Stdin)
	for port := uint32(2); lines.Scan(); port++ {
		if err := linear.UpdateResource(name, assignment(count, port)); err != nil {
			log.Fatal(err)
		}
	}
}

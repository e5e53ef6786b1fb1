// Program xds is the peer of benchmarks.xds: go-control-plane's linear caches behind its gRPC server.
//
// Usage: xds PORT SERVICES ENDPOINTS [CERTIFICATE KEY].  It serves a Cluster and a ClusterLoadAssignment for each
// Service, prints the port (PORT, or a free one for 0), and for each line that it reads it changes one endpoint of the
// first Service.
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
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func nameOf(service int) string { return fmt.Sprintf("bench/web-%d:http", service) }

// assignmentOf has count endpoints, of which the last has the port that is given.
func assignmentOf(service, count int, port uint32) *endpoint.ClusterLoadAssignment {
	locality := &endpoint.LocalityLbEndpoints{
		Locality:            &core.Locality{Zone: "zone-a"},
		LoadBalancingWeight: wrapperspb.UInt32(uint32(count)),
	}
	for number := range count {
		own := uint32(8080)
		if number == count-1 {
			own = port
		}
		at := service*count + number
		address := &core.SocketAddress{
			Address:       fmt.Sprintf("10.%d.%d.%d", 128+at>>16, at>>8&255, at&255),
			PortSpecifier: &core.SocketAddress_PortValue{PortValue: own},
		}
		locality.LbEndpoints = append(locality.LbEndpoints, &endpoint.LbEndpoint{
			HostIdentifier: &endpoint.LbEndpoint_Endpoint{Endpoint: &endpoint.Endpoint{
				Address: &core.Address{Address: &core.Address_SocketAddress{SocketAddress: address}},
			}},
		})
	}
	return &endpoint.ClusterLoadAssignment{ClusterName: nameOf(service), Endpoints: []*endpoint.LocalityLbEndpoints{locality}}
}

func clusterOf(service int) *cluster.Cluster {
	source := &core.ConfigSource{
		ResourceApiVersion:    core.ApiVersion_V3,
		ConfigSourceSpecifier: &core.ConfigSource_Ads{Ads: &core.AggregatedConfigSource{}},
	}
	return &cluster.Cluster{
		Name:                 nameOf(service),
		ConnectTimeout:       durationpb.New(5 * time.Second),
		ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_EDS},
		EdsClusterConfig:     &cluster.Cluster_EdsClusterConfig{EdsConfig: source},
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	services, count := number(os.Args[2]), number(os.Args[3])
	var options []grpc.ServerOption
	if len(os.Args) > 4 {
		certificate, err := tls.LoadX509KeyPair(os.Args[4], os.Args[5])
		if err != nil {
			log.Fatal(err)
		}
		options = append(options, grpc.Creds(credentials.NewServerTLSFromCert(&certificate)))
	}
	clusters, assignments := map[string]types.Resource{}, map[string]types.Resource{}
	for service := range services {
		clusters[nameOf(service)] = clusterOf(service)
		assignments[nameOf(service)] = assignmentOf(service, count, 1)
	}
	linear := cache.NewLinearCache(resource.EndpointType, cache.WithInitialResources(assignments))
	both := &cache.MuxCache{
		Classify:      func(request *cache.Request) string { return request.GetTypeUrl() },
		ClassifyDelta: func(request *cache.DeltaRequest) string { return request.GetTypeUrl() },
		Caches: map[string]cache.Cache{
			resource.ClusterType:  cache.NewLinearCache(resource.ClusterType, cache.WithInitialResources(clusters)),
			resource.EndpointType: linear,
		},
	}
	serving := grpc.NewServer(options...)
	discovery.RegisterAggregatedDiscoveryServiceServer(serving, server.NewServer(context.Background(), both, nil))
	listening, err := net.Listen("tcp", "127.0.0.1:"+os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		log.Fatal(serving.Serve(listening))
	}()
	fmt.Println(listening.Addr().(*net.TCPAddr).Port)
	lines := bufio.NewScanner(os.Stdin)
	for port := uint32(2); lines.Scan(); port++ {
		if err := linear.UpdateResource(nameOf(0), assignmentOf(0, count, port)); err != nil {
			log.Fatal(err)
		}
	}
}

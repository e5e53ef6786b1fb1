package main

import (
	"context"
	"fmt"
	"strconv"

	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

// server stands for an API server that accepts every write at once and whose watch is never late.  Of the client it
// implements the three calls that the reconciler makes; any other would be a nil call.
type server struct {
	kubernetes.Interface
	discoveryclient.DiscoveryV1Interface
	discoveryclient.EndpointSliceInterface
	cache                   cache.Indexer
	revision, writes, bytes int
}

func newServer(cache cache.Indexer) *server { return &server{cache: cache, revision: 2} }

func (s *server) DiscoveryV1() discoveryclient.DiscoveryV1Interface { return s }

func (s *server) EndpointSlices(string) discoveryclient.EndpointSliceInterface { return s }

func (s *server) Create(
	_ context.Context, slice *discovery.EndpointSlice, _ metav1.CreateOptions,
) (*discovery.EndpointSlice, error) {
	stored := slice.DeepCopy()
	stored.Name = fmt.Sprintf("%s%06d", slice.GenerateName, s.writes)
	stored.UID = types.UID("slice-" + stored.Name)
	stored.Generation = 1
	return s.accept(stored, slice, s.cache.Add)
}

func (s *server) Update(
	_ context.Context, slice *discovery.EndpointSlice, _ metav1.UpdateOptions,
) (*discovery.EndpointSlice, error) {
	stored := slice.DeepCopy()
	stored.Generation++
	return s.accept(stored, slice, s.cache.Update)
}

func (s *server) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	return fmt.Errorf("nothing in this benchmark deletes a slice, but %s was to go", name)
}

func (s *server) accept(
	stored, sent *discovery.EndpointSlice, keep func(any) error,
) (*discovery.EndpointSlice, error) {
	body, err := sent.Marshal()
	if err != nil {
		return nil, err
	}
	s.revision++
	s.writes++
	s.bytes += len(body)
	stored.ResourceVersion = strconv.Itoa(s.revision)
	return stored, keep(stored)
}

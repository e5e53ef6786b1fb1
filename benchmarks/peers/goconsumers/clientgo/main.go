// Program clientgo follows one Service with client-go's informer, and prints its endpoints whenever they change, as
// `sliceplane conformance --run program:` wants it.
//
// After each event it merges all slices of its cache anew: the union of the ready endpoints, each address once.  To
// follow single events instead is where other programs go wrong.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typed "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := follow(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func follow(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := typed.NewForConfig(config)
	if err != nil {
		return err
	}
	slices := cache.NewFilteredListWatchFromClient(client.RESTClient(), "endpointslices",
		os.Getenv("SLICEPLANE_NAMESPACE"), func(options *metav1.ListOptions) {
			options.LabelSelector = discovery.LabelServiceName + "=" + os.Getenv("SLICEPLANE_SERVICE")
		})
	informer := cache.NewSharedInformer(slices, &discovery.EndpointSlice{}, 0)
	changed := make(chan struct{}, 1)
	tell := func() {
		select {
		case changed <- struct{}{}:
		default: // one look is due already, and will see this change, too
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { tell() },
		UpdateFunc: func(any, any) { tell() },
		DeleteFunc: func(any) { tell() },
	}); err != nil {
		return err
	}
	go informer.Run(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
	tell() // a Service without slices has no events
	for range changed {
		line, err := json.Marshal(merged(informer.GetStore().List()))
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return nil
}

func merged(items []any) []string {
	endpoints := []string{}
	for _, item := range items {
		slice := item.(*discovery.EndpointSlice)
		if string(slice.AddressType) != os.Getenv("SLICEPLANE_FAMILY") {
			continue
		}
		for _, port := range slice.Ports {
			if port.Port == nil || port.Name == nil || *port.Name != os.Getenv("SLICEPLANE_PORT") ||
				port.Protocol != nil && *port.Protocol != corev1.ProtocolTCP {
				continue
			}
			for _, endpoint := range slice.Endpoints {
				if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
					number := strconv.Itoa(int(*port.Port))
					endpoints = append(endpoints, net.JoinHostPort(endpoint.Addresses[0], number))
				}
			}
		}
	}
	slices.Sort(endpoints)
	return slices.Compact(endpoints)
}

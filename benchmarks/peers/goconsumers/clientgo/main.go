// Program clientgo follows one Service with client-go's informer, and prints its endpoints whenever they change, as
// `sliceplane conformance --run program:` wants it.
//
// After each event it merges all slices of its cache anew.  To follow single events is where other programs go wrong.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"

	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typed "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		panic(err)
	}
	slices := cache.NewFilteredListWatchFromClient(typed.NewForConfigOrDie(config).RESTClient(), "endpointslices",
		os.Getenv("SLICEPLANE_NAMESPACE"), func(options *metav1.ListOptions) {
			options.LabelSelector = discovery.LabelServiceName + "=" + os.Getenv("SLICEPLANE_SERVICE")
		})
	informer := cache.NewSharedInformer(slices, &discovery.EndpointSlice{}, 0)
	changed := make(chan bool, 1)
	tell := func() {
		select {
		case changed <- true:
		default: // one look is due already, and will see this change, too
		}
	}
	informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { tell() },
		UpdateFunc: func(any, any) { tell() },
		DeleteFunc: func(any) { tell() },
	})
	go informer.Run(nil)
	cache.WaitForCacheSync(nil, informer.HasSynced)
	tell() // a Service without slices has no events
	for range changed {
		line, _ := json.Marshal(merged(informer.GetStore().List()))
		fmt.Println(string(line))
	}
}

// merged may name an endpoint twice, which the kit takes for one.
func merged(items []any) []string {
	endpoints := []string{}
	for _, item := range items {
		slice := item.(*discovery.EndpointSlice)
		for _, port := range slice.Ports {
			if string(slice.AddressType) != os.Getenv("SLICEPLANE_FAMILY") ||
				*port.Name != os.Getenv("SLICEPLANE_PORT") || *port.Protocol != "TCP" {
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
	return endpoints
}

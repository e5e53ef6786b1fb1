package main

import (
	"context"
	"fmt"
	"math/rand"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const writers = 8

// churn makes slices named s-0, s-1, ... where they are missing, and then changes random ones: an update mostly, else a
// deletion and a new object of that name.  Every writer owns the names of its own remainder, so none conflicts.
func churn(ctx context.Context, kubeconfig string, seed int64, make_, changes int) error {
	config, _, err := configure(kubeconfig, "application/vnd.kubernetes.protobuf")
	if err != nil {
		return err
	}
	client, err := clientOf(config, discoveryv1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	errs := make(chan error, writers)
	var wait sync.WaitGroup
	for writer := range writers {
		wait.Go(func() {
			random := rand.New(rand.NewSource(seed*writers + int64(writer)))
			errs <- write(ctx, client, random, writer, make_, changes)
		})
	}
	wait.Wait()
	for range writers {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

func write(ctx context.Context, client *rest.RESTClient, random *rand.Rand, writer, total, changes int) error {
	if changes == 0 {
		for n := writer; n < total; n += writers {
			if err := send(ctx, client.Post(), slice(n, random)); err != nil {
				return err
			}
		}
		return nil
	}
	for n := writer; n < changes; n += writers {
		if err := change(ctx, client, random, random.Intn(total/writers)*writers+writer); err != nil {
			return err
		}
	}
	return nil
}

func change(ctx context.Context, client *rest.RESTClient, random *rand.Rand, n int) error {
	wanted := slice(n, random)
	if random.Intn(5) > 0 {
		return send(ctx, client.Put().Name(wanted.Name), wanted)
	}
	gone := client.Delete().Namespace(metav1.NamespaceDefault).Resource("endpointslices").Name(wanted.Name)
	if err := gone.Body(&metav1.DeleteOptions{}).Do(ctx).Error(); err != nil {
		return err
	}
	return send(ctx, client.Post(), wanted)
}

func send(ctx context.Context, request *rest.Request, body *discoveryv1.EndpointSlice) error {
	return request.Namespace(metav1.NamespaceDefault).Resource("endpointslices").Body(body).Do(ctx).Error()
}

// slice is a random one; one in ten is labelled headless, which a node proxy's selector hides.
func slice(n int, random *rand.Rand) *discoveryv1.EndpointSlice {
	ready, serving := random.Intn(4) > 0, random.Intn(8) > 0
	port, name, protocol := int32(1+random.Intn(65535)), "http", corev1.ProtocolTCP
	node, zone := fmt.Sprintf("node-%d", random.Intn(5)), fmt.Sprintf("zone-%d", random.Intn(3))
	made := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:   fmt.Sprintf("s-%d", n),
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("svc-%d", n%97)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	if random.Intn(10) == 0 {
		made.Labels[corev1.IsHeadlessService] = ""
	}
	for range random.Intn(4) {
		made.Endpoints = append(made.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", random.Intn(250), random.Intn(250), 1+random.Intn(250))},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving},
			NodeName:   &node,
			Zone:       &zone,
		})
	}
	return made
}

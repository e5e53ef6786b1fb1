package main

import (
	"context"
	"fmt"
	"math/rand"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/typed/discovery/v1"
)

const writers = 8

// churn makes slices named s-0, s-1, ... where they are missing, and then changes random ones: an update mostly, else a
// deletion and a new object of that name.  Every writer owns the names of its own remainder, so none conflicts.
func churn(ctx context.Context, kubeconfig string, seed int64, make_, changes int) error {
	config, _, err := configure(kubeconfig, "application/vnd.kubernetes.protobuf")
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	slices := client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	errs := make(chan error, writers)
	var wait sync.WaitGroup
	for writer := range writers {
		wait.Go(func() {
			random := rand.New(rand.NewSource(seed*writers + int64(writer)))
			errs <- write(ctx, slices, random, writer, make_, changes)
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

func write(ctx context.Context, slices v1.EndpointSliceInterface, random *rand.Rand, writer, total, changes int) error {
	if changes == 0 {
		for n := writer; n < total; n += writers {
			if _, err := slices.Create(ctx, slice(n, random), metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		return nil
	}
	for n := writer; n < changes; n += writers {
		if err := change(ctx, slices, random, random.Intn(total/writers)*writers+writer); err != nil {
			return err
		}
	}
	return nil
}

func change(ctx context.Context, slices v1.EndpointSliceInterface, random *rand.Rand, n int) error {
	wanted := slice(n, random)
	if random.Intn(5) > 0 {
		_, err := slices.Update(ctx, wanted, metav1.UpdateOptions{})
		return err
	}
	if err := slices.Delete(ctx, wanted.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	_, err := slices.Create(ctx, wanted, metav1.CreateOptions{})
	return err
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

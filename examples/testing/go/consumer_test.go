package consumer

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/util/retry"
)

// readyAddresses is what is tested here: the ready addresses of a Service, sorted, from an informer's cache.
func readyAddresses(lister listers.EndpointSliceLister, namespace, service string) []string {
	selector := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service})
	found, err := lister.EndpointSlices(namespace).List(selector)
	if err != nil {
		return nil
	}
	addresses := []string{}
	for _, slice := range found {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				addresses = append(addresses, endpoint.Addresses...)
			}
		}
	}
	slices.Sort(addresses)
	return slices.Compact(addresses)
}

func TestScalingDownIsSeen(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(startPlane(t, "--nodes", "2", "../web.yaml"))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	factory := informers.NewSharedInformerFactory(client, 0)
	lister := factory.Discovery().V1().EndpointSlices().Lister()
	factory.Start(ctx.Done())
	eventually(t, ctx, func() bool { return len(readyAddresses(lister, "default", "web")) == 3 })

	deployments := client.AppsV1().Deployments("default")
	// The Deployment's status may be written between the two requests.
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		scale, err := deployments.GetScale(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		scale.Spec.Replicas = 1
		_, err = deployments.UpdateScale(ctx, "web", scale, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, func() bool { return len(readyAddresses(lister, "default", "web")) == 1 })
}

func TestPlanesAreApart(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for _, name := range []string{"one", "other"} {
		client := kubernetes.NewForConfigOrDie(startPlane(t, "--no-controllers"))
		all.Go(func() {
			made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
			listed, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(listed.Items) != 1 || listed.Items[0].Name != name {
				t.Errorf("%s sees %v, %v", name, listed, err)
			}
		})
	}
	all.Wait()
}

func eventually(t *testing.T, ctx context.Context, condition func() bool) {
	t.Helper()
	look := func(context.Context) (bool, error) { return condition(), nil }
	if err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 20*time.Second, true, look); err != nil {
		t.Fatal(err)
	}
}

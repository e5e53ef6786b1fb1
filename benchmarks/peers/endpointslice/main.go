// Program endpointslice measures upstream's own EndpointSlice reconciler, for comparison with ours.
//
// It does what kube-controller-manager does for one service: it lists the service's Pods and slices from informer
// caches, works out the trigger time, and calls Reconcile of k8s.io/endpointslice.  In place of an API server stands
// a client that encodes each object as protobuf, as kube-controller-manager's client would, and remembers it.  The
// objects are those of benchmarks/tools/objects.py.
//
// For each size it prints one line of JSON: first_sync_ms (Reconcile alone), flip_reconcile_ms and flip_total_ms (the
// lists and the trigger time too), medians over -flips flips of one Pod's readiness.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/endpointslice"
	"k8s.io/endpointslice/topologycache"
	"k8s.io/endpointslice/util"
	"k8s.io/klog/v2"
)

const (
	maxEndpointsPerSlice = 100
	controllerName       = "endpointslice-controller.k8s.io"
)

type figures struct {
	Size            int     `json:"size"`
	FirstSyncMs     float64 `json:"first_sync_ms"`
	FlipReconcileMs float64 `json:"flip_reconcile_ms"`
	FlipTotalMs     float64 `json:"flip_total_ms"`
	Slices          int     `json:"slices"`
	Writes          int     `json:"writes"`
	Bytes           int     `json:"bytes"`
}

// bench is one service of *size* Pods with the caches that the controller reads.
type bench struct {
	size       int
	service    *corev1.Service
	pods       []*corev1.Pod
	podIndex   cache.Indexer
	sliceIndex cache.Indexer
	podLister  corelisters.PodLister
	slices     discoverylisters.EndpointSliceLister
	server     *server
	triggers   *util.TriggerTimeTracker
	reconciler *endpointslice.Reconciler
}

func newIndexer() cache.Indexer {
	return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

func newBench(size int) *bench {
	b := &bench{size: size, service: serviceObject(), podIndex: newIndexer(), sliceIndex: newIndexer()}
	b.podLister = corelisters.NewPodLister(b.podIndex)
	b.slices = discoverylisters.NewEndpointSliceLister(b.sliceIndex)
	nodes := newIndexer()
	for number := 0; number*podsPerNode < size; number++ {
		must(nodes.Add(nodeObject(number)))
	}
	for number := range size {
		pod := podObject(number, true, 0)
		b.pods = append(b.pods, pod)
		must(b.podIndex.Add(pod))
	}
	b.server = newServer(b.sliceIndex)
	b.triggers = util.NewTriggerTimeTracker()
	b.reconciler = endpointslice.NewReconciler(
		b.server, corelisters.NewNodeLister(nodes), maxEndpointsPerSlice, util.NewEndpointSliceTracker(),
		topologycache.NewTopologyCache(), record.NewFakeRecorder(100), controllerName,
		endpointslice.WithPreferSameTrafficDistributionEnabled(true),
	)
	return b
}

// sync does one sync of the service and returns how long the whole of it and Reconcile alone took.
func (b *bench) sync() (total, reconcile time.Duration) {
	started := time.Now()
	pods, err := b.podLister.Pods(namespace).List(labels.Set(b.service.Spec.Selector).AsSelectorPreValidated())
	must(err)
	wanted := labels.Set{
		discovery.LabelServiceName: b.service.Name, discovery.LabelManagedBy: controllerName,
	}.AsSelectorPreValidated()
	existing, err := b.slices.EndpointSlices(namespace).List(wanted)
	must(err)
	trigger := b.triggers.ComputeEndpointLastChangeTriggerTime(namespace, b.service, pods)
	listed := time.Now()
	must(b.reconciler.Reconcile(klog.Background(), b.service, pods, existing, trigger))
	ended := time.Now()
	return ended.Sub(started), ended.Sub(listed)
}

// flip turns the readiness of one Pod and syncs; the cache learns of the Pod outside the measured time.
func (b *bench) flip(number int) (total, reconcile time.Duration) {
	ready := b.pods[number].Status.Conditions[0].Status != corev1.ConditionTrue
	b.server.revision++
	b.pods[number] = podObject(number, ready, b.server.revision)
	must(b.podIndex.Update(b.pods[number]))
	before := b.server.writes
	total, reconcile = b.sync()
	if b.server.writes != before+1 {
		log.Fatalf("a flip took %d writes", b.server.writes-before)
	}
	return total, reconcile
}

func median(values []time.Duration) float64 {
	slices.Sort(values)
	return float64(values[len(values)/2].Microseconds()) / 1e3
}

func measure(size, flips int) figures {
	b := newBench(size)
	_, first := b.sync()
	result := figures{Size: size, FirstSyncMs: float64(first.Microseconds()) / 1e3, Slices: b.server.writes}
	totals, reconciles := make([]time.Duration, flips), make([]time.Duration, flips)
	for turn := range flips {
		totals[turn], reconciles[turn] = b.flip(turn * 7919 % size)
	}
	result.FlipTotalMs, result.FlipReconcileMs = median(totals), median(reconciles)
	result.Writes, result.Bytes = b.server.writes, b.server.bytes
	return result
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	sizes := flag.String("sizes", "100,1000,20000,100000", "endpoints of the service, one run each")
	flips := flag.Int("flips", 15, "flips of each run; figures are their medians")
	flag.Parse()
	encoder := json.NewEncoder(os.Stdout)
	for text := range strings.SplitSeq(*sizes, ",") {
		size, err := strconv.Atoi(text)
		if err != nil || size < 1 || *flips < 1 {
			fmt.Fprintf(os.Stderr, "endpointslice: -sizes and -flips take numbers above 0, not %q and %d\n", text, *flips)
			os.Exit(2)
		}
		must(encoder.Encode(measure(size, *flips)))
	}
}

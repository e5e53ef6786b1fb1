package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// object is what every generated type of the served kinds can do.
type object interface {
	metav1.Object
	Marshal() ([]byte, error)
}

// Facts describe one informer; the digests are SHA-256 over the sorted cache.
type Facts struct {
	Synced   bool   `json:"synced"`
	Size     int    `json:"size"`
	Versions string `json:"versions"` // of lines "namespace/name@resourceVersion\n"
	Contents string `json:"contents"` // of the objects' own protobuf bytes: the same for every wire format
	Added    int64  `json:"added"`
	Updated  int64  `json:"updated"`
	Deleted  int64  `json:"deleted"`
}

type followed struct {
	informer                cache.SharedIndexInformer
	added, updated, deleted atomic.Int64
}

func newFollowed(informer cache.SharedIndexInformer) (*followed, error) {
	f := &followed{informer: informer}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { f.added.Add(1) },
		UpdateFunc: func(any, any) { f.updated.Add(1) },
		DeleteFunc: func(any) { f.deleted.Add(1) },
	})
	return f, err
}

func (f *followed) facts() (Facts, error) {
	items := f.informer.GetStore().List()
	objects := make([]object, 0, len(items))
	for _, item := range items {
		objects = append(objects, item.(object))
	}
	name := func(o object) string { return o.GetNamespace() + "/" + o.GetName() }
	sort.Slice(objects, func(a, b int) bool { return name(objects[a]) < name(objects[b]) })
	versions, contents := sha256.New(), sha256.New()
	for _, o := range objects {
		fmt.Fprintf(versions, "%s@%s\n", name(o), o.GetResourceVersion())
		raw, err := o.Marshal()
		if err != nil {
			return Facts{}, fmt.Errorf("%s: %w", name(o), err)
		}
		contents.Write(raw)
	}
	return Facts{
		Synced:   f.informer.HasSynced(),
		Size:     len(objects),
		Versions: hex.EncodeToString(versions.Sum(nil)),
		Contents: hex.EncodeToString(contents.Sum(nil)),
		Added:    f.added.Load(),
		Updated:  f.updated.Load(),
		Deleted:  f.deleted.Load(),
	}, nil
}

// follow starts the informers of a node proxy, once for each wire format.  Each line read is answered by one line:
// "facts", "requests" or "totals".  The end of input ends it.
func follow(ctx context.Context, kubeconfig, node string, in io.Reader, out io.Writer) error {
	formats := map[string]string{"protobuf": "application/vnd.kubernetes.protobuf", "json": "application/json"}
	all := map[string]*followed{}
	records := map[string]recorder{}
	for format, contentType := range formats {
		config, record, err := configure(kubeconfig, contentType)
		if err != nil {
			return err
		}
		config.AcceptContentTypes = contentType + ", */*"
		informers, err := proxyInformers(config, node)
		if err != nil {
			return err
		}
		records[format] = record
		for kind, informer := range informers {
			if all[format+" "+kind], err = newFollowed(informer); err != nil {
				return err
			}
			go informer.Run(ctx.Done())
		}
	}
	lines := bufio.NewScanner(in)
	answer := json.NewEncoder(out)
	for lines.Scan() {
		if err := answerOne(lines.Text(), all, records, answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

func answerOne(line string, all map[string]*followed, records map[string]recorder, answer *json.Encoder) error {
	switch line {
	case "facts":
		facts := map[string]Facts{}
		for key, f := range all {
			found, err := f.facts()
			if err != nil {
				return err
			}
			facts[key] = found
		}
		return answer.Encode(facts)
	case "requests":
		type counted struct {
			Request
			Count int `json:"count"`
		}
		requests := map[string][]counted{}
		for format, record := range records {
			record.mu.Lock()
			for request, count := range record.seen {
				requests[format] = append(requests[format], counted{request, count})
			}
			record.mu.Unlock()
		}
		return answer.Encode(requests)
	case "totals":
		totals := map[string]map[string]Totals{}
		for format, record := range records {
			totals[format] = map[string]Totals{}
			record.mu.Lock()
			for path, each := range record.totals {
				totals[format][path] = *each
			}
			record.mu.Unlock()
		}
		return answer.Encode(totals)
	}
	return fmt.Errorf("unknown command %q", line)
}

// proxyInformers asks for what a node proxy needs, with the selectors that it uses.
func proxyInformers(config *rest.Config, node string) (map[string]cache.SharedIndexInformer, error) {
	made := map[string]cache.SharedIndexInformer{}
	for _, kind := range []struct {
		resource      string
		version       schema.GroupVersion
		example       runtime.Object
		labels, field string
	}{
		{"services", corev1.SchemeGroupVersion, &corev1.Service{},
			"!service.kubernetes.io/service-proxy-name", "spec.clusterIP!=None"},
		{"endpointslices", discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{},
			"!service.kubernetes.io/headless", ""},
		{"nodes", corev1.SchemeGroupVersion, &corev1.Node{},
			"", fields.OneTermEqualSelector("metadata.name", node).String()},
		{"servicecidrs", networkingv1.SchemeGroupVersion, &networkingv1.ServiceCIDR{}, "", ""},
	} {
		client, err := clientOf(config, kind.version)
		if err != nil {
			return nil, err
		}
		narrow := func(options *metav1.ListOptions) {
			options.LabelSelector, options.FieldSelector = kind.labels, kind.field
		}
		source := cache.NewFilteredListWatchFromClient(client, kind.resource, metav1.NamespaceAll, narrow)
		made[kind.resource] = cache.NewSharedIndexInformer(source, kind.example, 0, cache.Indexers{})
	}
	return made, nil
}

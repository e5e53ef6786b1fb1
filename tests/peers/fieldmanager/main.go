// Applies histories of writes to objects with the field manager of Kubernetes, for comparison.
//
// Standard input has one history a line: {"apiVersion", "kind", "steps": [{"apply", "force", "manager", "object"}]}.
// Standard output has one line for each: [{"error"} or {"object", "managers"}] per step.  A step that fails changes
// nothing.  Times are left out.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
)

type history struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Steps      []step `json:"steps"`
}

type step struct {
	Apply   bool           `json:"apply"`
	Force   bool           `json:"force"`
	Manager string         `json:"manager"`
	Object  map[string]any `json:"object"`
}

type result struct {
	Error    string         `json:"error,omitempty"`
	Object   map[string]any `json:"object,omitempty"`
	Managers map[string]any `json:"managers,omitempty"`
}

type converter struct{ runtime.ObjectConvertor }

func (c converter) ConvertToVersion(in runtime.Object, to runtime.GroupVersioner) (runtime.Object, error) {
	return scheme.Scheme.ConvertToVersion(in, to)
}

type nothing struct{}

func (nothing) Default(runtime.Object) {}

func main() {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	decoder := json.NewDecoder(in)
	for decoder.More() {
		var one history
		if err := decoder.Decode(&one); err != nil {
			panic(err)
		}
		if err := out.Encode(run(one)); err != nil {
			panic(err)
		}
	}
}

func run(one history) []result {
	kind := schema.FromAPIVersionAndKind(one.APIVersion, one.Kind)
	manager, err := managedfields.NewDefaultFieldManager(
		applyconfigurations.NewTypeConverter(scheme.Scheme), converter{}, nothing{}, scheme.Scheme,
		kind, kind.GroupVersion(), "", nil)
	if err != nil {
		panic(err)
	}
	live, err := scheme.Scheme.New(kind)
	if err != nil {
		panic(err)
	}
	live.GetObjectKind().SetGroupVersionKind(kind)
	results := []result{}
	for _, step := range one.Steps {
		var made runtime.Object
		wanted := &unstructured.Unstructured{Object: step.Object}
		if step.Apply {
			made, err = manager.Apply(live, wanted, step.Manager, step.Force)
		} else {
			made, err = typed(wanted, kind)
			if err == nil {
				made, err = manager.Update(live, made, step.Manager)
			}
		}
		if err == nil {
			made, err = typed(made, kind)
		}
		if err != nil {
			results = append(results, result{Error: err.Error()})
			continue
		}
		// What is stored has an identity.
		accessor, _ := meta.Accessor(made)
		accessor.SetUID("stored")
		live = made
		results = append(results, shown(made))
	}
	return results
}

func typed(object runtime.Object, kind schema.GroupVersionKind) (runtime.Object, error) {
	made, err := scheme.Scheme.ConvertToVersion(object, kind.GroupVersion())
	if err == nil {
		made.GetObjectKind().SetGroupVersionKind(kind)
	}
	return made, err
}

func shown(object runtime.Object) result {
	document, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		panic(err)
	}
	accessor, _ := meta.Accessor(object)
	managers := map[string]any{}
	for _, entry := range accessor.GetManagedFields() {
		var fields any
		if err := json.Unmarshal(entry.FieldsV1.Raw, &fields); err != nil {
			panic(err)
		}
		managers[fmt.Sprintf("%s %s", entry.Manager, entry.Operation)] = fields
	}
	unstructured.RemoveNestedField(document, "metadata", "managedFields")
	unstructured.RemoveNestedField(document, "metadata", "uid")
	unstructured.RemoveNestedField(document, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(document, "status")
	return result{Object: document, Managers: managers}
}

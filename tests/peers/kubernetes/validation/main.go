// Judges objects as kube-apiserver does before it stores them: decoding, defaults, the strategy of the kind.
//
// Standard input has one JSON document a line: {"object"}, or {"object", "old"} for an update; "times" says how often it
// is judged.  Standard output has one line for each: {"error"} if the object cannot be decoded, else {"verdicts",
// "defaulted"}: the complaints, in every order in which they came (Go takes the members of a map in random order), and
// the object with its defaults.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	"k8s.io/kubernetes/pkg/capabilities"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/core/podtemplate"
	"k8s.io/kubernetes/pkg/registry/core/replicationcontroller"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
)

// How often an object is judged that does not say so itself.
const judgements = 8

type strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}

var strategies = map[string]strategy{
	"DaemonSet":             daemonset.Strategy,
	"Deployment":            deployment.Strategy,
	"Pod":                   pod.Strategy,
	"PodDisruptionBudget":   poddisruptionbudget.Strategy,
	"PodTemplate":           podtemplate.Strategy,
	"ReplicaSet":            replicaset.Strategy,
	"ReplicationController": replicationcontroller.Strategy,
	"StatefulSet":           statefulset.Strategy,
}

type question struct {
	Object json.RawMessage `json:"object"`
	Old    json.RawMessage `json:"old"`
	Times  int             `json:"times"`
}

type answer struct {
	Error     string         `json:"error,omitempty"`
	Verdicts  [][][3]string  `json:"verdicts,omitempty"`
	Defaulted runtime.Object `json:"defaulted,omitempty"`
}

func main() {
	capabilities.Initialize(capabilities.Capabilities{AllowPrivileged: true})
	decoder := json.NewDecoder(bufio.NewReaderSize(os.Stdin, 1<<20))
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	for decoder.More() {
		var asked question
		if err := decoder.Decode(&asked); err != nil {
			panic(err)
		}
		if err := encoder.Encode(judge(asked)); err != nil {
			panic(err)
		}
	}
}

func judge(asked question) answer {
	defaulted, kind, err := legacyscheme.Codecs.UniversalDeserializer().Decode(asked.Object, nil, nil)
	if err != nil {
		return answer{Error: err.Error()}
	}
	legacyscheme.Scheme.Default(defaulted)
	result := answer{Defaulted: defaulted}
	for range max(asked.Times, judgements) {
		verdict, err := verdictOf(kind, asked)
		if err != nil {
			return answer{Error: err.Error()}
		}
		known := false
		for _, other := range result.Verdicts {
			known = known || reflect.DeepEqual(verdict, other)
		}
		if !known {
			result.Verdicts = append(result.Verdicts, verdict)
		}
	}
	return result
}

func verdictOf(kind *schema.GroupVersionKind, asked question) ([][3]string, error) {
	ctx := request.WithNamespace(context.Background(), "default")
	ctx = request.WithRequestInfo(ctx, &request.RequestInfo{APIGroup: kind.Group, APIVersion: kind.Version})
	object, err := internal(asked.Object)
	if err != nil {
		return nil, err
	}
	if asked.Old == nil {
		err = rest.BeforeCreate(strategies[kind.Kind], ctx, object)
	} else {
		old, failed := internal(asked.Old)
		if failed != nil {
			return nil, failed
		}
		err = rest.BeforeUpdate(strategies[kind.Kind], ctx, object, old)
	}
	verdict := [][3]string{}
	if err == nil {
		return verdict, nil
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil || !apierrors.IsInvalid(err) {
		return nil, err
	}
	for _, cause := range status.Status().Details.Causes {
		verdict = append(verdict, [3]string{string(cause.Type), cause.Field, cause.Message})
	}
	return verdict, nil
}

func internal(raw []byte) (runtime.Object, error) {
	object, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), raw)
	if err != nil {
		return nil, err
	}
	head, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	rest.FillObjectMetaSystemFields(head)
	head.SetNamespace("default")
	head.SetUID("u")
	head.SetResourceVersion("1")
	return object, nil
}

package main

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
)

// The generated clientset would be most of what there is to compile; it is thin over what is used here, and the
// example in examples/testing/go has it.
var codecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	return serializer.NewCodecFactory(scheme)
}()

// clientOf is the client of one group and version.
func clientOf(config *rest.Config, version schema.GroupVersion) (*rest.RESTClient, error) {
	own := rest.CopyConfig(config)
	own.GroupVersion = &version
	own.APIPath = "/apis"
	if version.Group == "" {
		own.APIPath = "/api"
	}
	own.NegotiatedSerializer = codecs.WithoutConversion()
	own.UserAgent = rest.DefaultKubernetesUserAgent()
	return rest.RESTClientFor(own)
}

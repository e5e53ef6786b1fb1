package main

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	namespace   = "bench"
	app         = "web"
	podsPerNode = 20
)

var zones = []string{"zone-a", "zone-b", "zone-c"}

func meta(name string, number int) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: namespace, ResourceVersion: "1",
		UID: types.UID(fmt.Sprintf("5a1e0000-0000-4000-8000-%012x", number)),
	}
}

func serviceObject() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: meta(app, 0),
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Selector: map[string]string{"app": app},
			Ports: []corev1.ServicePort{
				{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080)},
			},
		},
	}
}

func nodeObject(number int) *corev1.Node {
	object := meta(fmt.Sprintf("node-%05d", number), number)
	object.Namespace = ""
	object.Labels = map[string]string{corev1.LabelTopologyZone: zones[number%len(zones)]}
	return &corev1.Node{ObjectMeta: object}
}

func podObject(number int, ready bool, revision int) *corev1.Pod {
	object := meta(fmt.Sprintf("%s-7d4b9c6f5d-%06d", app, number), number)
	object.Labels = map[string]string{"app": app}
	object.ResourceVersion = strconv.Itoa(revision + 2)
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	address := fmt.Sprintf("10.%d.%d.%d", 128+number>>16, number>>8&255, number&255)
	changed := metav1.NewTime(time.Date(2026, 11, 21, 10, 0, revision, 0, time.UTC))
	return &corev1.Pod{
		ObjectMeta: object,
		Spec: corev1.PodSpec{
			NodeName: fmt.Sprintf("node-%05d", number/podsPerNode),
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example/web:1",
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
			}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: changed}},
		},
	}
}

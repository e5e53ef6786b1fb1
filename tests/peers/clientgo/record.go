package main

import (
	"net/http"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Request is what a client asked for and how the server took it; timeoutSeconds and revisions vary and are left out.
type Request struct {
	Path          string `json:"path"`
	Accept        string `json:"accept"`
	Watch         bool   `json:"watch"`
	InitialEvents string `json:"sendInitialEvents"`
	Bookmarks     string `json:"allowWatchBookmarks"`
	Match         string `json:"resourceVersionMatch"`
	Limit         string `json:"limit"`
	Labels        string `json:"labelSelector"`
	Fields        string `json:"fieldSelector"`
	Code          int    `json:"code"`
	ContentType   string `json:"contentType"`
}

// recorder counts equal requests on their way through the transport.
type recorder struct {
	next http.RoundTripper
	mu   *sync.Mutex
	seen map[Request]int
}

func (r recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(request)
	query := request.URL.Query()
	entry := Request{
		Path:          request.URL.Path,
		Accept:        request.Header.Get("Accept"),
		Watch:         query.Get("watch") == "true",
		InitialEvents: query.Get("sendInitialEvents"),
		Bookmarks:     query.Get("allowWatchBookmarks"),
		Match:         query.Get("resourceVersionMatch"),
		Limit:         query.Get("limit"),
		Labels:        query.Get("labelSelector"),
		Fields:        query.Get("fieldSelector"),
	}
	if err == nil {
		entry.Code = response.StatusCode
		entry.ContentType = response.Header.Get("Content-Type")
	}
	r.mu.Lock()
	r.seen[entry]++
	r.mu.Unlock()
	return response, err
}

// configure reads a kubeconfig; accept is the content type as a component's configuration names it.
func configure(kubeconfig, accept string) (*rest.Config, recorder, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, recorder{}, err
	}
	config.ContentType = accept
	config.QPS, config.Burst = -1, 0
	record := recorder{mu: &sync.Mutex{}, seen: map[Request]int{}}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		record.next = next
		return record
	})
	return config, record, nil
}

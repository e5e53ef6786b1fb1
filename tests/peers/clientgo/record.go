package main

import (
	"bytes"
	"io"
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

// Totals are what became of one client's requests for one path.
type Totals struct {
	Begun   int64 `json:"begun"`   // lists, and streams with the initial events, that the server agreed to
	Expired int64 `json:"expired"` // answers that said that the history asked for is gone
	Bytes   int64 `json:"bytes"`   // of answers, without their heads
}

// recorder counts equal requests on their way through the transport, and reads along in the answers.
type recorder struct {
	next   http.RoundTripper
	mu     *sync.Mutex
	seen   map[Request]int
	totals map[string]*Totals
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
	defer r.mu.Unlock()
	r.seen[entry]++
	if err == nil {
		totals := r.totals[entry.Path]
		if totals == nil {
			totals = &Totals{}
			r.totals[entry.Path] = totals
		}
		begins := !entry.Watch && query.Get("continue") == "" || entry.InitialEvents == "true"
		if begins && entry.Code == http.StatusOK {
			totals.Begun++
		}
		response.Body = &heard{ReadCloser: response.Body, mu: r.mu, totals: totals}
	}
	return response, err
}

// expired is the reason in the Status of error 410, as text in JSON and in protobuf; no object of the tests has it.
var expired = []byte("Expired")

// heard is an answer's body that is counted while it is read.
type heard struct {
	io.ReadCloser
	mu     *sync.Mutex
	totals *Totals
	tail   []byte // the end of what was read, too short to have been counted
}

func (h *heard) Read(into []byte) (int, error) {
	n, err := h.ReadCloser.Read(into)
	text := append(h.tail, into[:n]...)
	h.mu.Lock()
	h.totals.Bytes += int64(n)
	h.totals.Expired += int64(bytes.Count(text, expired))
	h.mu.Unlock()
	h.tail = bytes.Clone(text[max(0, len(text)-len(expired)+1):])
	return n, err
}

// configure reads a kubeconfig; accept is the content type as a component's configuration names it.
func configure(kubeconfig, accept string) (*rest.Config, recorder, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, recorder{}, err
	}
	config.ContentType = accept
	config.QPS, config.Burst = -1, 0
	record := recorder{mu: &sync.Mutex{}, seen: map[Request]int{}, totals: map[string]*Totals{}}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		record.next = next
		return record
	})
	return config, record, nil
}

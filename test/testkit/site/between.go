package site

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
)

// Between stands between nodes and the site's hub: what handle does not answer, the
// hub does. It returns its URL, for Options.Hubs, and what ends it: it is there
// before the site is.
func Between(handle func(w http.ResponseWriter, r *http.Request) (answered bool)) (address string, end func(), err error) {
	hub, err := url.Parse(HubURL)
	if err != nil {
		return "", nil, err
	}
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		return "", nil, fmt.Errorf("stand before the hub: %w", err)
	}
	proxy := httputil.NewSingleHostReverseProxy(hub)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !handle(w, r) {
			proxy.ServeHTTP(w, r)
		}
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	end = func() {
		_ = server.Close() // what is open is of no use any more
		<-served
	}
	return fmt.Sprintf("http://%s:%d", HubIP, listener.Addr().(*net.TCPAddr).Port), end, nil
}

package site

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
)

// Intercept starts an HTTP proxy between nodes and the site's hub. The proxy forwards a request to
// the hub unless handle answers it. Call Intercept before Start: address is the proxy's URL, for
// Options.Hubs. The caller calls end, which stops the proxy.
func Intercept(handle func(w http.ResponseWriter, r *http.Request) (answered bool)) (address string, end func(),
	err error) {
	hub, err := url.Parse(HubURL)
	if err != nil {
		return "", nil, err
	}
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		return "", nil, fmt.Errorf("listen in front of the hub: %w", err)
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
		_ = server.Close() // open connections need no orderly end
		<-served
	}
	return fmt.Sprintf("http://%s:%d", HubIP, listener.Addr().(*net.TCPAddr).Port), end, nil
}

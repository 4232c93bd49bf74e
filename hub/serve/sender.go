package serve

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"lighter/hub/startup"
)

// senderOf names the sender of a request. If a proxy that is not in Proxies has sent it, that is
// logged once, because all nodes behind the proxy share the limits of one sender.
func (s *Server) senderOf(req *http.Request) string {
	if req.Header.Get("X-Forwarded-For") != "" {
		through := clientOf(req, nil)
		if !slices.ContainsFunc(s.Proxies, func(p netip.Prefix) bool { return p.Contains(through) }) {
			s.unnamed.Do(func() {
				s.Log.Warn("nodes report through a proxy that is not in the setting proxies, "+
					"so they share the limits of one sender", "address", through)
			})
		}
	}
	return senderOf(req, s.Proxies)
}

// senderOf names the sender of a request, for the limits of packages startup and holders. Requests
// from this machine have no sender (""). The exception is a local proxy that is not trusted and
// forwards for a client: all its clients count as one sender.
func senderOf(req *http.Request, proxies []netip.Prefix) string {
	client := clientOf(req, proxies)
	if client.IsLoopback() && req.Header.Get("X-Forwarded-For") != "" {
		return client.String()
	}
	return startup.SenderOf(client)
}

// clientOf returns the address of a request's client, seen through trusted proxies. A request over
// a Unix socket has none.
func clientOf(req *http.Request, proxies []netip.Prefix) netip.Addr {
	from, err := netip.ParseAddrPort(req.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	client := from.Addr().Unmap()
	isProxy := func(p netip.Prefix) bool { return p.Contains(client) }
	forwarded := strings.Split(strings.Join(req.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(forwarded) - 1; i >= 0 && slices.ContainsFunc(proxies, isProxy); i-- {
		before, err := netip.ParseAddr(strings.TrimSpace(forwarded[i]))
		if err != nil {
			break
		}
		client = before.Unmap()
	}
	return client
}

package site

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ProxyAddress is the address of the proxy of StartProxy, and ProxyURL its URL.
const (
	ProxyAddress = HubIP + ":8081"
	ProxyURL     = "http://" + ProxyAddress
)

// Proxy is a running HTTP proxy in front of hubs: nginx.
type Proxy struct {
	// Log is the path of the proxy's access log. A line has the request's method and path, the
	// answer's status and length, the addresses of the hubs that were asked, and the state of the
	// cache: HIT or MISS, for example, or - if the cache was not used.
	Log string

	process *process
}

// StartProxy starts a proxy on the hub's side of the link. It gives requests to the processes of a
// hub in turn, as docs/operating.md says, and caches units and indexes. The caller closes it.
func (s *Site) StartProxy(ctx context.Context, hubs ...*Hub) (*Proxy, error) {
	dir := filepath.Join(s.Dir, "proxy")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	p := &Proxy{Log: filepath.Join(dir, "access.log")}
	var servers strings.Builder
	for _, h := range hubs {
		fmt.Fprintf(&servers, " server %s fail_timeout=1s;", h.address)
	}
	text := fmt.Sprintf(`
  log_format hub '$request_method $uri $status $body_bytes_sent [$upstream_addr] $upstream_cache_status';
  access_log %[2]s hub;
  proxy_cache_path %[1]s/cache keys_zone=objects:1m;
  upstream hub {%[3]s }
  server {
    listen %[4]s;
    client_max_body_size 0;
    proxy_http_version 1.1;
    proxy_set_header Host $http_host;
    proxy_set_header X-Forwarded-For $remote_addr;
    proxy_request_buffering off;
    proxy_connect_timeout 3s;
    proxy_read_timeout 1h;
    location / {
      proxy_pass http://hub;
      proxy_buffering off;
    }
    location ~ ^/lighter/1/[^/]+/(packs|indexes)/ {
      proxy_pass http://hub;
      proxy_cache objects;
    }
  }
`, dir, p.Log, servers.String(), ProxyAddress)
	var err error
	if p.process, err = s.startNginx(ctx, "proxy", dir, text, ProxyAddress); err != nil {
		return nil, err
	}
	return p, nil
}

// Close stops the proxy.
func (p *Proxy) Close() error { return p.process.stop() }

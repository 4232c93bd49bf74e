package site

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// webAddress is the address of the web server, on the hub's side of the link.
const webAddress = HubIP + ":8080"

// URLs of the site's hub, and of the web server of StartWeb.
const (
	HubURL = "http://" + hubAddress
	WebURL = "http://" + webAddress
)

// Web is a running web server: nginx, serving plain files.
type Web struct {
	Dir string // the directory that it serves; empty at first
	Log string // path of the access log

	process *process
}

// StartWeb starts a web server. It serves files as text/html, except .gif and .jpg, and compresses
// them if the client accepts that. The machine does not reach it if Options.Delayed is set. The
// caller closes it.
func (s *Site) StartWeb(ctx context.Context) (*Web, error) {
	dir := filepath.Join(s.Dir, "web")
	w := &Web{Dir: filepath.Join(dir, "files"), Log: filepath.Join(dir, "access.log")}
	if err := os.MkdirAll(w.Dir, 0o755); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`daemon off;
user root;
pid %[1]s/pid;
error_log %[1]s/error.log;
events {}
http {
  client_body_temp_path %[1]s/1; proxy_temp_path %[1]s/2; fastcgi_temp_path %[1]s/3;
  uwsgi_temp_path %[1]s/4; scgi_temp_path %[1]s/5;
  access_log %[2]s;
  default_type text/html;
  gzip on; gzip_types *;
  server { listen %[3]s; root %[4]s; }
}
`, dir, w.Log, webAddress, w.Dir)
	var err error
	if w.process, err = s.startNginx(ctx, "nginx", config, text, webAddress); err != nil {
		return nil, err
	}
	return w, nil
}

// startNginx writes a configuration, starts nginx with it, and waits until it listens at the
// address.
func (s *Site) startNginx(ctx context.Context, name, config, text, address string) (*process, error) {
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	log := filepath.Join(filepath.Dir(config), "error.log")
	p, err := s.startProcess(name, []string{"nginx", "-c", config, "-e", log})
	if err != nil {
		return nil, err
	}
	if err := p.await(ctx, dial("tcp", address)); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// Close stops the server.
func (w *Web) Close() error { return w.process.stop() }

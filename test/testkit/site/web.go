package site

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// WebAddress is the address of the web server, on the hub's side of the link.
const WebAddress = HubIP + ":8080"

// URLs of the site's hub, and of the web server of StartWeb.
const (
	HubURL = "http://" + hubAddress
	WebURL = "http://" + WebAddress
)

// Web is a running web server: nginx, serving plain files.
type Web struct {
	Dir string // the directory that it serves; empty at first
	Log string // path of the access log

	process *process
}

// StartWeb starts a web server. It serves files as text/html, except .gif and .jpg, and compresses
// them if the client accepts gzip. The machine does not reach it if Options.Delayed is set. The
// caller closes it.
func (s *Site) StartWeb(ctx context.Context) (*Web, error) {
	files := filepath.Join(s.Dir, "web", "files")
	return s.StartWebOf(ctx, files, fmt.Sprintf(`
  default_type text/html;
  gzip on; gzip_types *;
  server { listen %s; root %s; }
`, WebAddress, files))
}

// StartWebOf is StartWeb with other directives of the http block of nginx's configuration. They
// have to make it serve files, a directory that is made if it is missing, at WebAddress.
func (s *Site) StartWebOf(ctx context.Context, files, http string) (*Web, error) {
	dir := filepath.Join(s.Dir, "web")
	w := &Web{Dir: files, Log: filepath.Join(dir, "access.log")}
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(files, 0o755)); err != nil {
		return nil, err
	}
	var err error
	w.process, err = s.startNginx(ctx, "nginx", dir, fmt.Sprintf("\n  access_log %s;\n%s", w.Log, http), WebAddress)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// startNginx starts nginx with its files in a directory, and waits until it listens at the address.
// http has the directives of the http block of nginx's configuration.
func (s *Site) startNginx(ctx context.Context, name, dir, http, address string) (*process, error) {
	config := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`daemon off;
user root;
pid %[1]s/pid;
error_log %[1]s/error.log;
events {}
http {
  client_body_temp_path %[1]s/1; proxy_temp_path %[1]s/2; fastcgi_temp_path %[1]s/3;
  uwsgi_temp_path %[1]s/4; scgi_temp_path %[1]s/5;
%[2]s}
`, dir, http)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	p, err := s.startProcess(name, []string{"nginx", "-c", config, "-e", filepath.Join(dir, "error.log")})
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

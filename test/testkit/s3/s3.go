// Package s3 runs a real S3 server for tests: versitygw, which "test/setup s3" builds. The server
// listens on a loopback port, and its objects are files in a directory.
package s3

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"lighter/test/testkit/port"
)

const (
	accessKey    = "lighter"
	secretKey    = "secret of the test's server"
	region       = "us-east-1"
	startTimeout = time.Minute // until a started server has to answer
)

// Server is an S3 server.
type Server struct {
	dir     string
	address string // HOST:PORT
	cmd     *exec.Cmd
}

// New starts a server. It sets the credentials that the SDK of AWS reads from the environment. The
// caller closes the server.
func New() (*Server, error) {
	dir, err := os.MkdirTemp("", "s3-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	if err := s.start(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Server) start() error {
	program := filepath.Join(os.Getenv("LIGHTER_WORK"), "tools", "versitygw")
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("there is no S3 server: run test/setup s3, and set LIGHTER_WORK (%w)", err)
	}
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": secretKey,
		"AWS_REGION": region, "AWS_EC2_METADATA_DISABLED": "true"} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	var err error
	if s.address, err = port.Loopback(); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(s.dir, "data"), 0o755); err != nil {
		return err
	}
	return s.Run(program)
}

// Run starts the server's program, and waits until it answers.
func (s *Server) Run(program string) error {
	out, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	s.cmd = exec.Command(program, "--port", s.address, "--access", accessKey, "--secret", secretKey, "--region", region,
		"--quiet", "posix", filepath.Join(s.dir, "data"))
	s.cmd.Stdout, s.cmd.Stderr = out, out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	deadline := time.Now().Add(startTimeout)
	for err = s.ping(); err != nil; err = s.ping() {
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(out.Name())
			return fmt.Errorf("the S3 server does not answer: %w\n%s", err, text)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

func (s *Server) ping() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+"/", nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// Close ends the server and deletes its objects.
func (s *Server) Close() {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
	_ = os.RemoveAll(s.dir) // leftovers in the system's temporary directory do no harm
}

// Bucket makes the empty bucket number n and returns its URL.
func (s *Server) Bucket(n int) (string, error) {
	name := "bucket-" + strconv.Itoa(n)
	if err := os.Mkdir(s.Dir(name), 0o755); err != nil { // the server stores a bucket as a directory
		return "", err
	}
	q := url.Values{"region": {region}, "endpoint": {"http://" + s.address}, "use_path_style": {"true"}}
	return "s3://" + name + "?" + q.Encode(), nil
}

// Fault changes how a Proxy answers a request. forward sends the request to the server, and the
// answer to w.
type Fault func(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc)

// proxyBuffer is the size in bytes of the kernel's receive buffer of a connection to a Proxy.
const proxyBuffer = 64 << 10

// Proxy starts an HTTP proxy in front of a bucket's server, and returns the bucket's URL through
// it. The caller closes the proxy.
func Proxy(bucket string, fault Fault) (through string, proxy *httptest.Server, err error) {
	u, err := url.Parse(bucket)
	if err != nil {
		return "", nil, err
	}
	q := u.Query()
	server, err := url.Parse(q.Get("endpoint"))
	if err != nil {
		return "", nil, err
	}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(server)
			r.Out.Host = r.In.Host // the client's signature covers the host
		},
		ErrorLog: log.New(io.Discard, "", 0), // the errors are about closed connections
	}
	proxy = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		fault(w, req, forward.ServeHTTP)
	}))
	proxy.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		_ = conn.(*net.TCPConn).SetReadBuffer(proxyBuffer) // a large buffer makes the fault slow even slower
		return ctx
	}
	proxy.Start()
	q.Set("endpoint", proxy.URL)
	u.RawQuery = q.Encode()
	return u.String(), proxy, nil
}

// Dir returns the directory of a bucket.
func (s *Server) Dir(bucket string) string { return filepath.Join(s.dir, "data", bucket) }

//go:build e2e

package hubs

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lighter/test/testkit/eventually"
	"lighter/test/testkit/site"
)

// service passes connections on to processes of a hub, in turn, as a Service of Kubernetes does: it
// knows which processes are ready, and leaves established connections where they are.
type service struct {
	mu        sync.Mutex // guards the following
	endpoints []string   // HOST:PORT of processes that are ready and do not end
	turn      int
}

// startService listens at an address until the test ends.
func startService(t *testing.T, address string) *service {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := new(service)
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Go(func() { s.pass(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

func (s *service) pass(client net.Conn) {
	defer client.Close()
	s.mu.Lock()
	if len(s.endpoints) == 0 {
		s.mu.Unlock()
		return
	}
	s.turn++
	to := s.endpoints[s.turn%len(s.endpoints)]
	s.mu.Unlock()
	hub, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer hub.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(hub, client) // an error means that one of both has closed the connection
		_ = hub.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(client, hub)
	_ = client.(*net.TCPConn).CloseWrite()
	<-done
}

func (s *service) add(p *program) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endpoints = append(s.endpoints, strings.TrimPrefix(p.url, "http://"))
}

func (s *service) remove(p *program) {
	s.mu.Lock()
	defer s.mu.Unlock()
	address := strings.TrimPrefix(p.url, "http://")
	s.endpoints = slices.DeleteFunc(s.endpoints, func(e string) bool { return e == address })
}

// Both processes of a hub with PostgreSQL and S3 are replaced, one after the other, while images
// are pushed and pulled, a container reads files that its node has not cached, and a client asks
// for the list of images. Kubernetes does it in the same steps: a new process starts and becomes
// ready, the old one gets no further connections, and a moment later SIGTERM. No client notices
// anything, and nothing is lost.
func TestRollingUpgrade(t *testing.T) {
	config := "drain_seconds = 60\nopen = true\n" + production(newCatalog(t, database), newBucket(t))
	// The site's own hub is a process, too: it is the first that is replaced.
	s := start(t, site.Options{Hubs: []string{site.ProxyURL}}, config)
	balancer := startService(t, site.ProxyAddress)
	first := &program{t: t, url: s.Hub.URL}
	key := filepath.Join(s.Hub.Root, "hub.key")
	second := startHub(t, config, key)
	second.wants("/readyz", 200)
	balancer.add(first)
	balancer.add(second)
	push(t, s.Hub, image(t, 0, 8), "prod")
	c := run(t, s, balanced("prod"))
	reads(t, c, 0, 1)

	var ended atomic.Bool
	var clients sync.WaitGroup
	var mu sync.Mutex // guards the following
	counts, pushed := map[string]int{}, []string{}
	// client calls do until the upgrade has ended, and once at least.
	client := func(name string, do func(n int) error) {
		clients.Go(func() {
			for n := 0; n == 0 || !ended.Load(); n++ {
				if err := do(n); err != nil {
					t.Errorf("%s %d: %v", name, n, err)
					return
				}
				mu.Lock()
				counts[name]++
				mu.Unlock()
			}
		})
	}
	layouts := []string{image(t, 10, 12), image(t, 12, 14)}
	skopeo := func(args ...string) error {
		out, err := exec.CommandContext(t.Context(), "skopeo", append([]string{"copy", "--quiet", "--insecure-policy",
			"--preserve-digests", "--src-tls-verify=false", "--dest-tls-verify=false"}, args...)...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	client("push", func(n int) error {
		name := fmt.Sprintf("new%d", n)
		err := skopeo("oci:"+layouts[n%2]+":latest", "docker://"+balanced(name))
		mu.Lock()
		defer mu.Unlock()
		pushed = append(pushed, name+":latest")
		return err
	})
	pulls := t.TempDir()
	client("pull", func(n int) error {
		return skopeo("docker://"+balanced("prod"), fmt.Sprintf("oci:%s/%d:latest", pulls, n))
	})
	client("read", func(n int) error {
		if _, err := s.Machine.Lighter(t.Context(), "cache", "prune"); err != nil {
			return err
		}
		return errors.Join(site.DropCaches(), read(t, c, n%8, n%8+1))
	})
	client("list", func(int) error {
		res, err := http.Get(site.ProxyURL + "/lighter/1/default/images")
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, res.Body)
		if err := errors.Join(err, res.Body.Close()); err != nil || res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %w", res.Status, err)
		}
		time.Sleep(5 * time.Millisecond)
		return nil
	})
	for _, old := range []*program{first, second} {
		next := startHub(t, config, key)
		next.wants("/readyz", 200, "database: ok\n", "bucket: ok\n")
		balancer.add(next)
		balancer.remove(old)
		time.Sleep(time.Second) // preStop
		if old == first {
			if err := s.Hub.Stop(); err != nil {
				t.Error(err)
			}
			continue
		}
		if err := old.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-old.ended
		if code := old.cmd.ProcessState.ExitCode(); code != 0 || strings.Contains(old.log(), "before all requests") {
			t.Errorf("the second process has ended with %v, want exit code 0, and answers to all requests",
				old.cmd.ProcessState)
		}
		second = next
	}
	ended.Store(true)
	clients.Wait()
	t.Logf("during the upgrade: %v", counts)
	for _, name := range pushed {
		eventually.Holds(t, name+" to be ready", func() bool {
			return strings.Contains(second.lighter("images"), name) && !strings.Contains(second.lighter("jobs"), name)
		})
	}
	second.lighter("fsck", "--deep")
	reads(t, c, 0, 8)
}

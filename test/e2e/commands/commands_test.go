//go:build e2e

package commands

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"lighter/test/testkit/site"
	"lighter/wire"
	"lighter/wire/client"
)

// All tests share an enclosure, a hub at the default address of commands, and a certificate that
// the hub trusts.
var (
	lighter  string     // the binary that `make build` made
	hubRoot  string     // the hub's directory
	hubLog   string     // the file of the hub's log
	hubTrust *authority // the certificate
)

const (
	hubAddress = "127.0.0.1:7070" // the default address of commands
	foreignIP  = "10.64.9.9"      // on the loopback device, but not a loopback address

	// Host names of 127.0.0.1 and of foreignIP.
	nearName, foreignName = "near.test", "foreign.test"
)

func TestMain(m *testing.M) { os.Exit(site.EnclosedWith(prepare, m.Run)) }

// prepare makes what all tests share. stop ends the hub.
func prepare() (stop func() error, err error) {
	if lighter, err = site.Binary(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "hub-")
	if err != nil {
		return nil, err
	}
	// TestNoRights runs commands as another user, who needs access to the directory.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	if out, err := exec.Command("ip", "address", "add", foreignIP+"/32", "dev", "lo").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("add the address %s: %w: %s", foreignIP, err, out)
	}
	hosts := filepath.Join(dir, "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost "+nearName+"\n"+foreignIP+" "+foreignName+"\n"),
		0o644); err != nil {
		return nil, err
	}
	if err := syscall.Mount(hosts, "/etc/hosts", "", syscall.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mount %s on /etc/hosts: %w", hosts, err)
	}
	if hubTrust, err = newAuthority(dir); err != nil {
		return nil, err
	}
	hubRoot, hubLog = filepath.Join(dir, "root"), filepath.Join(dir, "hub.log")
	// The level is debug, because no secret may be logged at any level.
	var config strings.Builder
	for _, host := range []string{"127.0.0.1", "127.0.0.2", nearName, foreignIP, foreignName} {
		fmt.Fprintf(&config, "[[registry]]\nhost = %q\nprivate = true\n", host)
	}
	file := filepath.Join(dir, "hub.toml")
	if err := os.WriteFile(file, []byte(config.String()), 0o600); err != nil {
		return nil, err
	}
	return startHub(hubLog, "--root", hubRoot, "--log-level", "debug", "--config", file)
}

// startHub starts a hub, waits until it accepts connections, and returns a function that ends it.
// log is the file of its log.
func startHub(log string, args ...string) (stop func() error, err error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	address := hubAddress
	for i, arg := range args {
		if arg == "--listen" {
			address = args[i+1]
		}
	}
	cmd := exec.Command(lighter, append([]string{"hub"}, args...)...)
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+hubTrust.file)
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for range 1000 {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			return func() error {
				_ = cmd.Process.Signal(syscall.SIGTERM) // the hub may have ended by itself
				return <-ended
			}, nil
		}
		select {
		case err := <-ended:
			text, _ := os.ReadFile(log)
			return nil, fmt.Errorf("the hub ended during its start: %w: %s", err, text)
		case <-time.After(10 * time.Millisecond):
		}
	}
	_ = cmd.Process.Kill()
	return nil, fmt.Errorf("wait for the hub: it does not accept connections at %s", address)
}

// result is what a command has returned and printed.
type result struct {
	code           int // exit code
	stdout, stderr string
}

// run runs a command with additional environment variables. If the command takes more than a
// minute, the test fails.
func run(t *testing.T, env []string, argv ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("run %s: %v", strings.Join(argv, " "), err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// good runs a command that must succeed, and returns its standard output.
func good(t *testing.T, argv ...string) string {
	t.Helper()
	r := run(t, nil, argv...)
	if r.code != 0 {
		t.Fatalf("%s: exit %d, want 0: %s%s", strings.Join(argv, " "), r.code, r.stderr, r.stdout)
	}
	return r.stdout
}

// bad checks that a command failed with an exit code, and that its standard error is a single line
// that contains words.
func (r result) bad(t *testing.T, code int, words ...string) {
	t.Helper()
	if r.code != code || strings.Count(r.stderr, "\n") != 1 || !strings.HasPrefix(r.stderr, "lighter: ") {
		t.Errorf("exit %d, want %d and one line of error: %q", r.code, code, r.stderr)
	}
	for _, word := range words {
		if !strings.Contains(r.stderr, word) {
			t.Errorf("the error %q does not contain %q", r.stderr, word)
		}
	}
}

// hubClient returns a client of a hub. The default is the hub that all tests share.
func hubClient(t *testing.T, o client.Options) *client.Client {
	t.Helper()
	if o.URL == "" {
		o.URL = "http://" + hubAddress
	}
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// images lists the hub's images with a name.
func images(t *testing.T, name string) []wire.Image {
	t.Helper()
	list, err := hubClient(t, client.Options{}).Images(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// ready waits until a pushed image is ready, and returns it.
func ready(t *testing.T, name string) wire.Image {
	t.Helper()
	last, err := hubClient(t, client.Options{}).Add(t.Context(), wire.Add{Name: name}, func(wire.Progress) {})
	if err != nil || len(last.Images) != 1 || last.Images[0].State != wire.StateReady {
		t.Fatalf("wait for image %s: got %+v (%v), want one that is ready", name, last, err)
	}
	return last.Images[0]
}

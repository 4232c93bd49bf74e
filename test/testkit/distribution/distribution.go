// Package distribution runs a registry of the CNCF's Distribution for tests. It listens on the
// loopback, keeps its files in a temporary directory, and ends with the test.
package distribution

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"lighter/test/testkit/certificate"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/port"
	"lighter/test/testkit/workdir"
)

// User and Password are the login of StartPrivate's registry.
const (
	User     = "hub"
	Password = "pull-only"
)

// Start runs a registry until the test ends, and returns its HOST:PORT. It is served without TLS.
func Start(tb testing.TB) (host string) {
	tb.Helper()
	host = free(tb)
	StartAt(tb, host, "", "")
	return host
}

// StartPrivate does the same for a registry that has TLS, and wants a login. The registry's
// certificate is in the file ca.
func StartPrivate(tb testing.TB) (host, ca string) {
	tb.Helper()
	host = free(tb)
	dir := tb.TempDir()
	in := func(file string) string { return filepath.Join(dir, file) }
	certificate.New(tb, "registry").Write(tb, in("ca.pem"), in("key.pem"))
	StartAt(tb, host, fmt.Sprintf("tls: {certificate: %q, key: %q}", in("ca.pem"), in("key.pem")), Auth(tb))
	return host, in("ca.pem")
}

// Auth returns the section of a registry's configuration that makes it want the login of User.
func Auth(tb testing.TB) string {
	tb.Helper()
	users := filepath.Join(tb.TempDir(), "users")
	user := User + ":$2b$05$abcdefghijklmnopqrstuuA2YqJrHVCZyfMFDak5hovHEWtgzf6t6\n" // of Password
	if err := os.WriteFile(users, []byte(user), 0o600); err != nil {
		tb.Fatal(err)
	}
	return fmt.Sprintf("auth: {htpasswd: {realm: test, path: %q}}", users)
}

func free(tb testing.TB) (host string) {
	tb.Helper()
	host, err := port.Loopback()
	if err != nil {
		tb.Fatal(err)
	}
	return host
}

// StartAt runs a registry at HOST:PORT until the test ends. Manifests can be deleted. http has
// further keys of the section http of its configuration, and more has further sections, one in each
// line; both may be empty.
func StartAt(tb testing.TB, host, http, more string) {
	tb.Helper()
	work, err := workdir.Path()
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	if http != "" {
		http = ", " + http
	}
	text := fmt.Sprintf(`version: 0.1
log: {level: error}
storage: {filesystem: {rootdirectory: %q}, delete: {enabled: true}}
http: {addr: %q%s}
%s
`, filepath.Join(dir, "stored"), host, http, more)
	config := filepath.Join(dir, "config.yml")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(work, "tools", "registry"), "serve", config)
	// Without this variable, the registry tries to connect to an OpenTelemetry collector.
	cmd.Env, cmd.Stderr = append(os.Environ(), "OTEL_TRACES_EXPORTER=none"), tb.Output()
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	eventually.Holds(tb, "the registry", func() bool {
		conn, err := net.Dial("tcp", host)
		return err == nil && conn.Close() == nil
	})
}

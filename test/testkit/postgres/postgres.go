// Package postgres runs Debian's PostgreSQL 15 for tests, as "test/setup postgres" installs it.
// Each server has its own directory, and listens on its own loopback port. Its settings are the
// defaults, but it accepts more connections. The package needs root: PostgreSQL refuses to run as
// root, so the package starts it as another user.
package postgres

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"lighter/test/testkit/port"
)

const (
	programs     = "/usr/lib/postgresql/15/bin"
	startTimeout = time.Minute // until a started server has to answer
	// maxConnections suffices for about thirty processes of hubs.
	maxConnections = "600"

	// NoSync is a setting with which a server does not wait for the disk. Tests kill servers, and
	// never the machine, so they lose nothing by it.
	NoSync = "fsync=off"
)

// Server is a PostgreSQL server.
type Server struct {
	dir, password string
	port          int
	user          *syscall.Credential
	cmd           *exec.Cmd
	settings      []string
	databases     atomic.Int64
}

// Start makes a database cluster and starts its server, with NoSync. Both are gone when the test
// ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := New(NoSync)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// New does what Start does, without a test, and with other settings (NAME=VALUE). The caller closes
// the server.
func New(settings ...string) (s *Server, err error) {
	s = &Server{password: rand.Text(), settings: settings}
	if s.user, err = account(); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "postgres-"); err != nil { // other users cannot enter T.TempDir
		return nil, err
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	passwordFile := filepath.Join(s.dir, "password")
	if err := os.WriteFile(passwordFile, []byte(s.password), 0o400); err != nil {
		return nil, err
	}
	for _, path := range []string{s.dir, passwordFile} {
		if err := os.Chown(path, int(s.user.Uid), int(s.user.Gid)); err != nil {
			return nil, err
		}
	}
	initdb := s.command("initdb", "--no-sync", "--pgdata", s.data(), "--username", "lighter", "--pwfile", passwordFile,
		"--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C.UTF-8")
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	address, err := port.Loopback()
	if err != nil {
		return nil, err
	}
	if s.port, err = strconv.Atoi(address[strings.LastIndexByte(address, ':')+1:]); err != nil {
		return nil, err
	}
	return s, s.Run()
}

// Close ends the server and deletes its databases.
func (s *Server) Close() {
	s.Kill()
	_ = os.RemoveAll(s.dir) // leftovers in the system's temporary directory do no harm
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// account returns the user that runs the server: Debian's package has made this user.
func account() (*syscall.Credential, error) {
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL is not installed: run test/setup postgres (%w)", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}

func (s *Server) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(programs, program), args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.user, Setpgid: true}
	return cmd
}

// Run starts the server, also again after Kill, and waits until it answers.
func (s *Server) Run() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"-D", s.data(), "-p", strconv.Itoa(s.port)}
	for _, setting := range append(s.settings,
		"listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections="+maxConnections) {
		args = append(args, "-c", setting)
	}
	s.cmd = s.command("postgres", args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	deadline := time.Now().Add(startTimeout)
	for err = s.ping(); err != nil; err = s.ping() {
		if time.Now().After(deadline) {
			out, _ := os.ReadFile(log.Name())
			return fmt.Errorf("PostgreSQL does not answer: %w\n%s", err, out)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

func (s *Server) ping() error {
	db, err := sql.Open("pgx", s.url("postgres"))
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return db.PingContext(ctx)
}

// Kill ends the server at once, without a checkpoint, as a crash does. When Run starts the server
// again, the server recovers its databases.
func (s *Server) Kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGQUIT) // also ends the server's children, unlike SIGKILL
	_ = s.cmd.Wait()
	s.cmd = nil
}

// Database makes an empty database and returns its URL.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	database, err := s.NewDatabase()
	if err != nil {
		t.Fatal(err)
	}
	return database
}

// NewDatabase does what Database does, without a test.
func (s *Server) NewDatabase() (string, error) {
	name := fmt.Sprintf("lighter_%d", s.databases.Add(1))
	return s.url(name), execute(s.url("postgres"), "CREATE DATABASE "+name)
}

func (s *Server) url(database string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword("lighter", s.password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), Path: database}
	return u.String()
}

// Execute runs SQL in a database.
func (s *Server) Execute(t testing.TB, database, statements string) {
	t.Helper()
	if err := execute(database, statements); err != nil {
		t.Fatal(err)
	}
}

func execute(database, statements string) error {
	db, err := sql.Open("pgx", database)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.Exec(statements); err != nil {
		return fmt.Errorf("%s: %w", strings.TrimSpace(statements), err)
	}
	return nil
}

// Deadlocks returns the lines of the server's log that report deadlocks.
func (s *Server) Deadlocks() (string, error) {
	log, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return "", err
	}
	var found strings.Builder
	within := false
	for line := range strings.Lines(string(log)) {
		switch {
		case strings.Contains(line, "deadlock detected"):
			within = true
		case within && !strings.HasPrefix(line, "\t") && !strings.Contains(line, "DETAIL:") &&
			!strings.Contains(line, "HINT:") && !strings.Contains(line, "CONTEXT:") &&
			!strings.Contains(line, "STATEMENT:"):
			within = false
		}
		if within {
			found.WriteString(line)
		}
	}
	return found.String(), nil
}

// Package registries reaches OCI registries, and logs in to them, for hubs and nodes.
//
// It promises that requests to a repository (Registries.Session) have the login that the
// configuration has for it, the most specific one first. It logs in again before a token expires,
// and once after it was refused: a session may be used for weeks. Credentials go to their registry
// and to the token server that it names, and along no redirect. They are sent without TLS only to
// registries of which the configuration says so, and within this machine. They are in no log, no
// error and no answer.
//
// It connects only to public addresses, and to hosts that the configuration allows (private). So
// nobody can explore the operator's network by naming images.
//
// A table bounds the requests to a host, and the layers that are read from it at a time. A host
// that answers 429, or 503 with Retry-After, rests: until then all requests to it fail at once with
// a RestError, but for probes (Probe). The rest of a host without a table is forgotten if very many
// others are asked.
//
// Hazard: a registry names its token server, which gets the login. So give each registry a login of
// its own, which can only read, unless the hub attaches indexes there.
package registries

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	lru "github.com/hashicorp/golang-lru/v2"
)

// loginTimeout bounds the time for a login.
const loginTimeout = 60 * time.Second

// Registries are the registries that a process reads. It is safe for concurrent use.
type Registries struct {
	tables   []*table // the most specific first
	others   *table   // for hosts without a table
	fallback provider // for hosts whose table names no login; nil: none
	observer Observer

	// sessions are those with the configuration's login: many callers share one login to a
	// repository.
	sessions *lru.Cache[place, *Session]
}

// Observer learns of requests. It is called by many goroutines at the same time, and must not wait.
// host is the key of the host's table (Registry.Host), or empty if it has none.
type Observer interface {
	// Requested is called for each answer, with its status. 0: there was none.
	Requested(host string, status int)
	// Rests is called when a host has asked for a pause.
	Rests(host string)
}

// place is what a login is for, and whether it may be without TLS.
type place struct {
	scope     string
	plainHTTP bool
}

// maxSessions bounds the logins to repositories that are kept. The least recently used ones are
// forgotten.
const maxSessions = 1024

// table is a registry of the configuration, as it is used.
type table struct {
	Registry
	pattern
	login     provider // nil: none
	roots     *x509.CertPool
	transport *http.Transport

	probe time.Duration // how often a host that rests is asked; 0: never

	mu    sync.Mutex // for the making of hosts
	hosts *lru.Cache[string, *host]
}

// New reads the files that the tables name. The caller calls Close. observer may be nil.
func New(all []Registry, log *slog.Logger, observer Observer) (*Registries, error) {
	r := &Registries{observer: observer}
	if observer == nil {
		r.observer = nobody{}
	}
	r.sessions, _ = lru.New[place, *Session](maxSessions) // it fails for sizes below 1
	r.others = r.newTable(Registry{}, nil)
	for _, one := range all {
		t, err := r.open(one, log)
		if err != nil {
			return nil, fmt.Errorf("registry %s: %w", one.Host, err)
		}
		r.tables = append(r.tables, t)
	}
	slices.SortStableFunc(r.tables, func(a, b *table) int { return a.compare(b.pattern) })
	return r, nil
}

// nobody is an observer that does nothing.
type nobody struct{}

func (nobody) Requested(string, int) {}
func (nobody) Rests(string)          {}

func (r *Registries) open(one Registry, log *slog.Logger) (*table, error) {
	var roots *x509.CertPool
	if one.CA != "" {
		b, err := os.ReadFile(one.CA)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		if roots, err = x509.SystemCertPool(); err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		if !roots.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("ca: %s has no certificate in PEM", one.CA)
		}
	}
	t := r.newTable(one, roots)
	var err error
	t.login, err = newProvider(one, log)
	return t, err
}

func (r *Registries) newTable(one Registry, roots *x509.CertPool) *table {
	t := &table{Registry: one, pattern: parsePattern(one.Host), roots: roots,
		transport: r.newTransport(roots, headerTimeout)}
	t.hosts, _ = lru.New[string, *host](maxHosts) // it fails for sizes below 1
	return t
}

// Probe makes hosts that rest get one request in each such time. If the answer asks for no pause,
// the rest ends. It is for processes whose users cannot wait for long, such as readers of mounted
// images. It is called before any session is used.
func (r *Registries) Probe(every time.Duration) {
	for _, t := range append(r.tables, r.others) {
		t.probe = every
	}
}

// Close closes idle connections.
func (r *Registries) Close() error {
	for _, t := range append(r.tables, r.others) {
		t.transport.CloseIdleConnections()
	}
	return nil
}

// Table returns the table for a host, HOST[:PORT]. It is the zero value if the host has none.
func (r *Registries) Table(host string) Registry { return r.tableOf(host).Registry }

// tableOf returns the table for a host, HOST[:PORT].
func (r *Registries) tableOf(host string) *table {
	at := parsePattern(host)
	for _, t := range r.tables {
		if t.matches(at) {
			return t
		}
	}
	return r.others
}

// Access says as whom a repository is read.
type Access struct {
	// Login is the login of a user who wants an image. Without it, the repository is read without
	// a login.
	Login authn.AuthConfig
	// Own: the repository is read with the login of the registry's table, if there is one. Login is
	// not used.
	Own bool
	// PlainHTTP: a user allows to read the registry without TLS.
	PlainHTTP bool
	// Write: the session also pushes and deletes, if the login may do that.
	Write bool
}

// Session returns a session with a repository. It sends nothing yet. Sessions with the login of a
// table are shared.
func (r *Registries) Session(repository name.Repository, a Access) (*Session, error) {
	scope := transport.PullScope
	if a.Write {
		scope = transport.DeleteScope // which includes the others
	}
	return r.session(repository.Registry, RepositoryOf(repository), repository.Scope(scope), a)
}

// RegistrySession returns a session with the registry HOST[:PORT] itself, with the login of its
// table, for a scope that is no repository's: registry:catalog:*. With an empty scope, it sends
// user and password themselves instead of a token, as other APIs of the host want them.
func (r *Registries) RegistrySession(host, scope string, plainHTTP bool) (*Session, error) {
	registry, err := name.NewRegistry(host)
	if err != nil {
		return nil, err
	}
	return r.session(registry, host, scope, Access{Own: true, PlainHTTP: plainHTTP})
}

// RepositoryOf returns the HOST[:PORT]/PATH of a repository in containerd's form: Docker Hub is
// docker.io.
func RepositoryOf(repository name.Repository) string {
	if repository.RegistryStr() == name.DefaultRegistry {
		return dockerHub + "/" + repository.RepositoryStr()
	}
	return repository.RegistryStr() + "/" + repository.RepositoryStr()
}

// Anonymous returns a client that logs in nowhere, for other files than those of registries.
// plainHTTP allows plain HTTP to all hosts.
func (r *Registries) Anonymous(plainHTTP bool) *http.Client {
	return &http.Client{Transport: r.reach(plainHTTP)}
}

// session returns the session of a repository for a scope. Own ones are shared.
func (r *Registries) session(registry name.Registry, repository, scope string, a Access) (*Session, error) {
	t := r.tableOf(registry.RegistryStr())
	a.PlainHTTP = a.PlainHTTP || t.PlainHTTP
	at := place{repository + " " + scope, a.PlainHTTP}
	if s, ok := r.sessions.Get(at); ok && a.Own {
		return s, nil
	}
	if a.PlainHTTP {
		var err error
		if registry, err = name.NewRegistry(registry.RegistryStr(), name.Insecure); err != nil {
			return nil, err
		}
	}
	s := &Session{registry: registry, scope: scope, login: fixed{a.Login}, repository: repository,
		table: t, plainHTTP: a.PlainHTTP, next: r.reach(a.PlainHTTP)}
	if a.Own {
		s.login, s.own, s.onlyTLS = t.login, t.login != nil, !t.PlainHTTP
		if s.login == nil {
			s.login = r.fallback
		}
		r.sessions.Add(at, s)
	}
	return s, nil
}

// errPlain refuses to send the login of a table over plain HTTP.
var errPlain = errors.New("it answers without TLS, and the login of a table [[registry]] is sent only over TLS: set " +
	"plain_http in the table of this host to allow it")

package pullthrough

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"lighter/wire"
	"lighter/wire/pattern"
)

// Readers says who may read a registry through the hub.
type Readers string

const (
	// Anyone: everybody may read what the registry gives to clients without a login.
	Anyone Readers = "anyone"
	// Credentials: a client may read what the registry gives to the client's own login.
	Credentials Readers = "credentials"
	// Hub: everybody who reaches the hub may read what the registry gives to the hub's login.
	Hub Readers = "hub"
)

// Registry is another registry that clients read through the hub.
type Registry struct {
	Host         string // HOST or HOST:PORT, as in names of images: docker.io
	Readers      Readers
	Repositories []string // patterns of repositories without the host; empty: all
	TagSeconds   int64    // how long a tag is believed before the registry is asked again
}

// Check returns an error if registries cannot be read, or pushed to, through the hub as configured.
// It has one line.
func Check(all []Registry) error {
	for i, r := range all {
		if slices.ContainsFunc(all[:i], func(other Registry) bool { return other.Host == r.Host }) {
			return fmt.Errorf("registry %s is configured twice", r.Host)
		}
		if err := r.check(); err != nil {
			return fmt.Errorf("registry %s: %w", r.Host, err)
		}
	}
	return nil
}

func (r *Registry) check() error {
	ref, err := wire.ParseName(r.Host + "/image")
	switch {
	case err != nil || ref.NamedRepository() != r.Host+"/image" || strings.Contains(r.Host, "/"):
		return fmt.Errorf("host %q: want HOST or HOST:PORT in lower case, as in names of images", r.Host)
	case !slices.Contains([]Readers{Anyone, Credentials, Hub}, r.Readers):
		return fmt.Errorf("readers %q: want anyone, credentials or hub", string(r.Readers))
	case r.Readers == Hub && len(r.Repositories) == 0:
		return errors.New("readers is hub: set repositories, too: everybody who reaches the hub may read them")
	case r.TagSeconds < 0:
		return errors.New("tag_seconds is below zero")
	}
	for _, p := range r.Repositories {
		if err := pattern.Check(p); err != nil {
			return fmt.Errorf("repositories: %w", err)
		}
	}
	return nil
}

// Allows reports whether the rule is about a repository, without the host.
func (r *Registry) Allows(path string) bool {
	return len(r.Repositories) == 0 ||
		slices.ContainsFunc(r.Repositories, func(p string) bool { return pattern.Match(p, path) })
}

// dockerHub is the host of Docker Hub in names of images. Others lead to it, too.
const dockerHub = "docker.io"

var dockerHubs = []string{"index.docker.io", "registry-1.docker.io"}

// request is a client's request for something of a registry that is read through the hub.
type request struct {
	*http.Request
	registry   *Registry
	repository string // HOST[:PORT]/PATH
	own        string // its path in the hub's registry
	kind       string // manifests, blobs, tags or referrers
	which      string // tag or digest
	// mirror says that the client does not ask the hub's own registry: the hub stands for another
	// one.
	mirror bool
}

// requestPath matches the paths of reads. Its groups are repository, kind and object.
var requestPath = regexp.MustCompile(`^/v2/(.+)/(manifests|blobs|tags|referrers)/([^/]+)$`)

// find returns what a request is about. It returns nil if the request is not about a registry that
// is read through the hub. found is false if the request names another registry (ns) that is not
// configured: it must not get an image of the hub's own registry instead.
func (s *Service) find(req *http.Request) (r *request, found bool) {
	parts := requestPath.FindStringSubmatch(req.URL.Path)
	if parts == nil || req.Method != http.MethodGet && req.Method != http.MethodHead {
		return nil, true
	}
	r = &request{Request: req, kind: parts[2], which: parts[3]}
	host, path := req.URL.Query().Get("ns"), parts[1]
	switch {
	case host != "":
		r.mirror = true
	case HasName(s.config.DockerNames, req.Host):
		host, r.mirror = dockerHub, true
	default:
		host, path, _ = strings.Cut(path, "/")
		host = wire.Ref{Repository: host + "/x"}.NamedRepository()
		host = strings.TrimSuffix(host, "/x")
	}
	if slices.Contains(dockerHubs, host) {
		host = dockerHub
	}
	r.registry = s.registries[host]
	if r.registry == nil {
		return nil, !r.mirror || slices.Contains(s.config.OwnHosts, host) || host == req.Host
	}
	if host == dockerHub && !strings.Contains(path, "/") {
		path = "library/" + path
	}
	r.repository = host + "/" + path
	ref, err := wire.ParseName(r.repository)
	if err != nil || ref.NamedRepository() != r.repository || !r.registry.Allows(path) {
		return nil, !r.mirror
	}
	r.own = ref.Repository
	return r, true
}

// HasName reports whether a Host header is one of the names, each HOST or HOST:PORT.
func HasName(names []string, host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	return slices.ContainsFunc(names, func(n string) bool {
		return strings.EqualFold(n, name) || strings.EqualFold(n, host)
	})
}

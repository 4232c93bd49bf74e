package wire

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
)

// A Ref says where an image of some name lies in the hub's registry.
type Ref struct {
	Repository string // its path behind /v2/
	Tag        string // empty if Digest is there
	Digest     string // "sha256:…"
}

// Reference returns what follows manifests/ in the registry: tag or digest.
func (r Ref) Reference() string {
	if r.Digest != "" {
		return r.Digest
	}
	return r.Tag
}

// Name writes the name that ParseName reads.
func (r Ref) Name() string {
	if r.Digest != "" {
		return r.NamedRepository() + "@" + r.Digest
	}
	return r.NamedRepository() + ":" + r.Tag
}

// NamedRepository is the name without tag and digest: [HOST[:PORT]/]PATH.
func (r Ref) NamedRepository() string {
	first, rest, found := strings.Cut(r.Repository, "/")
	if host := mappedHost.FindStringSubmatch(first); found && host != nil {
		first = host[1] + ":" + host[2]
	}
	if found {
		first += "/"
	}
	return first + rest
}

var (
	// A repository's name cannot hold a colon, so that of a host with a port
	// is written as an underscore, which no host name has.
	mappedHost = regexp.MustCompile(`^([a-z0-9.-]+)_([0-9]{1,5})$`)
	namedHost  = regexp.MustCompile(`^([a-z0-9.-]+):([0-9]{1,5})$`)

	repositoryName = regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagName        = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
	digestName     = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

const maxRepository = 255

// ParseName reads an image's name, HOST/REPO:TAG, HOST/REPO@DIGEST or without
// HOST/, and says where the image lies in the hub's registry. The repository is
// the name without its tag, with the colon before a host's port written as an
// underscore: localhost:5000/a/b:1 is tag 1 of repository localhost_5000/a/b.
// A name without tag or digest means the tag "latest".
func ParseName(name string) (Ref, error) {
	r := Ref{Repository: name}
	if repository, digest, found := strings.Cut(name, "@"); found {
		r.Repository, r.Digest = repository, digest
	}
	first, rest, found := strings.Cut(r.Repository, "/")
	if host := namedHost.FindStringSubmatch(first); found && host != nil {
		first = host[1] + "_" + host[2]
	}
	r.Repository = first
	if found {
		r.Repository += "/" + rest
	}
	if i := strings.LastIndexByte(r.Repository, ':'); i >= 0 {
		r.Repository, r.Tag = r.Repository[:i], r.Repository[i+1:]
	} else if r.Digest == "" {
		r.Tag = "latest"
	}
	if r.Digest != "" {
		r.Tag = "" // the digest says more
	}
	switch {
	case !repositoryName.MatchString(r.Repository) || len(r.Repository) > maxRepository:
		return r, fmt.Errorf("%q is not an image's name: want [HOST/]REPOSITORY[:TAG] in lower case", name)
	case r.Digest == "" && !tagName.MatchString(r.Tag):
		return r, fmt.Errorf("%q is not an image's name: its tag is invalid", name)
	case r.Digest != "" && !digestName.MatchString(r.Digest):
		return r, fmt.Errorf("%q is not an image's name: its digest is invalid", name)
	}
	return r, nil
}

// IsDigest reports whether text is a digest as images have it: sha256:HEX.
func IsDigest(text string) bool { return digestName.MatchString(text) }

// ShortDigest is how people see a digest.
func ShortDigest(digest string) string {
	digits := strings.TrimPrefix(digest, "sha256:")
	return digits[:min(len(digits), 12)]
}

// IsLoopback tells whether host is this machine without asking a name server.
func IsLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/distribution/reference"
)

// Ref is the place of an image in the hub's registry.
type Ref struct {
	Repository string // path after /v2/
	Tag        string // empty if Digest is set
	Digest     string // "sha256:…"
}

const (
	defaultTag    = "latest"
	maxRepository = 255 // bytes, in the OCI distribution spec
	shortDigest   = 12  // hexadecimal digits that ShortDigest keeps
)

var (
	// hostInPath matches the first part of a repository's path if it stands for HOST:PORT. A path
	// cannot contain a colon, and a host name contains no underscore.
	hostInPath = regexp.MustCompile(`^([a-z0-9.-]+)_([0-9]+)$`)

	digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// ParseName returns the place of the image [HOST[:PORT]/]REPOSITORY[:TAG|@DIGEST]. The default
// tag is "latest"; with a digest, a tag is ignored. The repository's path in the hub's registry
// includes the host, with an underscore before the port: localhost:5000/a/b:1 is tag 1 of
// localhost_5000/a/b.
func ParseName(name string) (Ref, error) {
	r, err := parseName(name)
	if err != nil {
		return Ref{}, fmt.Errorf("image name %q: %w; want [HOST[:PORT]/]REPOSITORY[:TAG|@DIGEST], with HOST and "+
			"REPOSITORY in lower case", name, err)
	}
	return r, nil
}

func parseName(name string) (r Ref, err error) {
	parsed, err := reference.Parse(name)
	if err != nil {
		return r, err
	}
	named, ok := parsed.(reference.Named)
	if !ok {
		return r, reference.ErrNameEmpty
	}
	r = Ref{Repository: strings.Replace(named.Name(), ":", "_", 1), Tag: defaultTag}
	if tagged, ok := parsed.(reference.Tagged); ok {
		r.Tag = tagged.Tag()
	}
	if digested, ok := parsed.(reference.Digested); ok {
		r.Tag, r.Digest = "", digested.Digest().String()
	}
	switch host := reference.Domain(named); {
	case host != strings.ToLower(host):
		return r, errors.New("upper case in the host")
	case strings.HasPrefix(host, "["):
		return r, errors.New("an IPv6 address as host")
	case len(r.Repository) > maxRepository:
		return r, reference.ErrNameTooLong
	case r.Digest != "" && !IsDigest(r.Digest):
		return r, errors.New("a digest other than SHA-256")
	}
	return r, nil
}

// Name returns the name that ParseName parses.
func (r Ref) Name() string {
	if r.Digest != "" {
		return r.NamedRepository() + "@" + r.Digest
	}
	return r.NamedRepository() + ":" + r.Tag
}

// NamedRepository returns the name without tag and digest: [HOST[:PORT]/]REPOSITORY.
func (r Ref) NamedRepository() string {
	host, path, found := strings.Cut(r.Repository, "/")
	if !found {
		return r.Repository
	}
	return hostInPath.ReplaceAllString(host, "$1:$2") + "/" + path
}

// Reference returns the last part of the manifest's URL in the registry: digest or tag.
func (r Ref) Reference() string {
	if r.Digest != "" {
		return r.Digest
	}
	return r.Tag
}

// IsDigest reports whether text is a digest of the form sha256:HEX.
func IsDigest(text string) bool { return digestPattern.MatchString(text) }

// ShortDigest returns the beginning of a digest's hexadecimal digits, for users.
func ShortDigest(digest string) string {
	digits := strings.TrimPrefix(digest, "sha256:")
	return digits[:min(len(digits), shortDigest)]
}

// IsLoopback reports whether a host is "localhost" or a loopback address. It asks no name server.
func IsLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

// CheckPlatform returns an error unless a platform is OS/ARCH, or OS/ARCH/VARIANT.
func CheckPlatform(platform string) error {
	if !strings.Contains(platform, "/") || strings.Contains(platform, ",") {
		return fmt.Errorf("platform %q: want OS/ARCH", platform)
	}
	return nil
}

package oci

import (
	"slices"
	"strings"

	"github.com/containerd/platforms"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Media types of Docker's manifests and configs. Package v1 has those of OCI.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
)

// ManifestTypes are the media types of manifests and indexes.
var ManifestTypes = []string{v1.MediaTypeImageIndex, dockerList, v1.MediaTypeImageManifest, dockerManifest}

func isIndex(mediaType string) bool {
	return mediaType == v1.MediaTypeImageIndex || mediaType == dockerList
}

// Media types of layers.
const (
	ociLayer      = "application/vnd.oci.image.layer.v1.tar"
	ociForeign    = "application/vnd.oci.image.layer.nondistributable.v1.tar"
	dockerLayer   = "application/vnd.docker.image.rootfs.diff.tar"
	dockerForeign = "application/vnd.docker.image.rootfs.foreign.diff.tar"
)

// Kind is what a blob's media type says of it.
type Kind int

const (
	NotALayer     Kind = iota
	Foreign            // a layer that must not be copied
	Tar                // an uncompressed layer
	CompressedTar      // a layer whose first bytes say how it is compressed, as in containerd
)

// KindOf returns the kind of a blob with that media type.
func KindOf(mediaType string) Kind {
	switch mediaType {
	case ociLayer:
		return Tar
	case ociLayer + "+gzip", ociLayer + "+zstd", dockerLayer, dockerLayer + ".gzip", dockerLayer + ".zstd":
		return CompressedTar
	case ociForeign, ociForeign + "+gzip", ociForeign + "+zstd", dockerForeign, dockerForeign + ".gzip":
		return Foreign
	}
	return NotALayer
}

// PlatformName returns OS/ARCH[/VARIANT], or "" if the platform is not known.
func PlatformName(p v1.Platform) string {
	if p.OS == "" && p.Architecture == "" {
		return ""
	}
	name := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		name += "/" + p.Variant
	}
	return name
}

// matches reports whether a platform is among the wanted ones, as containerd compares them:
// linux/arm64 is linux/arm64/v8. An unknown platform counts as wanted.
func matches(platform string, wanted []string) bool {
	return slices.ContainsFunc(wanted, func(want string) bool {
		return platform == "" || normalized(platform) == normalized(want)
	})
}

func normalized(platform string) string {
	parts := append(strings.SplitN(platform, "/", 3), "", "")
	return PlatformName(platforms.Normalize(v1.Platform{OS: parts[0], Architecture: parts[1], Variant: parts[2]}))
}

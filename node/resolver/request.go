package resolver

import "strings"

// Request is one layer of a pull. A front makes it from a request of its container runtime.
type Request struct {
	Chain  string // the chainID of the layer
	Parent string // the chainID of the layer below; empty if there is none, or it is unknown

	// Reference and Manifest name the image: the reference that the pull fetches, and the digest of
	// the manifest that the runtime fetched from there, with the credentials of the pull. A front
	// sets them only if the runtime itself says so. Both are empty if it does not.
	Reference string
	Manifest  string

	// Namespace is that of containerd in which the pull runs; empty: it is not known.
	Namespace string

	// Pulled is Manifest, also under TrustChain, where the answers of hubs do not depend on it. The
	// Resolver sets it.
	Pulled string

	// withoutHubs says that hubs are not asked, because pulls go on without them for a while.
	withoutHubs bool

	// MoreAbove says that the image has layers above this one. If it is false, the image may have
	// some or none.
	MoreAbove bool
}

// image returns what answers about the request's image depend on: its manifest, and the repository
// from which it is pulled. It is empty if the request has no manifest.
func (q Request) image() string {
	if q.Manifest == "" {
		return ""
	}
	return q.Manifest + " " + q.Repository()
}

// Repository returns HOST[:PORT]/PATH of the reference, or "" if the reference has no host: hubs
// use names without a host for their own images. It splits a reference as containerd does, and
// normalizes nothing, so that it finds the repository from which containerd pulls.
func (q Request) Repository() string {
	repository, _, _ := strings.Cut(q.Reference, "@")
	host, path, found := strings.Cut(repository, "/")
	if !found || host != "localhost" && !strings.ContainsAny(host, ".:") {
		return ""
	}
	path, _, _ = strings.Cut(path, ":")
	return host + "/" + path
}

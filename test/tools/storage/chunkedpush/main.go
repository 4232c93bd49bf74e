// Command chunkedpush copies an image from one registry to another, with zstd:chunked layers, as
// `podman push --compression-format zstd:chunked --force-compression` does, with Podman's library.
// Both registries are reached without TLS.
//
//	chunkedpush SOURCE DESTINATION
package main

import (
	"context"
	"fmt"
	"os"

	"go.podman.io/image/v5/copy"
	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/pkg/compression"
	"go.podman.io/image/v5/signature"
	"go.podman.io/image/v5/types"
)

func main() {
	if err := push(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "chunkedpush:", err)
		os.Exit(1)
	}
}

func push(source, destination string) error {
	from, err := docker.ParseReference("//" + source)
	if err != nil {
		return err
	}
	to, err := docker.ParseReference("//" + destination)
	if err != nil {
		return err
	}
	policy, err := signature.NewPolicyContext(&signature.Policy{
		Default: signature.PolicyRequirements{signature.NewPRInsecureAcceptAnything()}})
	if err != nil {
		return err
	}
	defer policy.Destroy()
	plain := types.SystemContext{DockerInsecureSkipTLSVerify: types.OptionalBoolTrue}
	chunked := plain
	chunked.CompressionFormat = &compression.ZstdChunked
	_, err = copy.Image(context.Background(), policy, to, from,
		&copy.Options{SourceCtx: &plain, DestinationCtx: &chunked, ForceCompressionFormat: true})
	return err
}

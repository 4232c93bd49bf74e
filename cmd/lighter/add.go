package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/format/chunk"
	"lighter/store/registry"
	"lighter/wire"
	"lighter/wire/client"
)

func addCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add [flags] SOURCE [NAME]",
		Short: "Add an image to a hub, and wait until it can be run",
		Long: `Add an image to a hub. The command ends when the image can be run, so a pipeline needs no
further check: exit code 0 means that nodes start the image lazily, any other that it failed,
with the reason on standard error. If the command is interrupted, the hub goes on; the same
command waits again. An image that the hub has already is ready at once. With --wait=false the
command ends as soon as the hub has begun; "lighter jobs" and "lighter images --watch" show
what becomes of the image.

SOURCE is one of
  docker://HOST/REPO:TAG     an image in a registry; the hub fetches it itself, with
                             the credentials of this user's docker configuration
  oci:DIR[:TAG]              an OCI layout on this machine
  docker-archive:FILE        a file that "docker save" wrote

NAME is the image's name on the hub; the default is its name in SOURCE.`,
		Example: `  lighter add docker://registry.example.org/physics/root:6.32
  lighter add --hub https://hub.example.org oci:build/image:latest physics/root:dev
  lighter add --platform linux/arm64 docker-archive:image.tar tools/shell:1
  docker push registry.example.org/ci/app:42 && lighter add docker://registry.example.org/ci/app:42`,
		Args: command.AtLeast(1, "SOURCE", "NAME"),
	}
	platform := cmd.Flags().String("platform", "",
		"add only `OS/ARCH[/VARIANT]`; the default is each platform in the hub's configuration")
	plainSource := cmd.Flags().Bool("source-plain-http", false,
		"allow plain HTTP to a source registry that is not on this machine")
	wait := cmd.Flags().Bool("wait", true, "wait until the image can be run")
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, args []string) ([]wire.Image, error) {
		last, err := watch(func(show func(wire.Progress)) (wire.Progress, error) {
			return add(ctx, hub, source{args[0], argument(args, 1), *platform, *plainSource, *wait}, show)
		})
		return last.Images, err
	}, func(images []wire.Image) error {
		for _, image := range images {
			fmt.Printf("%s %s %s %s\n", image.Name, image.Digest, image.Platform, image.State)
		}
		return nil
	})
}

// source is the image to add.
type source struct {
	from, name, platform string
	plainHTTP            bool
	wait                 bool // until the image is ready
}

// errBegun ends a request when the hub has begun.
var errBegun = errors.New("the hub has begun")

// begin has the hub add an image. It waits as the source says.
func (s source) begin(
	ctx context.Context, hub *client.Client, request wire.Add, each func(wire.Progress),
) (wire.Progress, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	last, err := hub.Add(ctx, request, func(p wire.Progress) {
		if each(p); !s.wait { // the job is queued before its progress is sent
			end(errBegun)
		}
	})
	if errors.Is(context.Cause(ctx), errBegun) {
		return wire.Progress{}, nil
	}
	return last, err
}

// add has the hub fetch an image from a registry, or pushes a local image to it.
func add(ctx context.Context, hub *client.Client, s source, each func(wire.Progress)) (wire.Progress, error) {
	if ref, ok := strings.CutPrefix(s.from, "docker://"); ok {
		credentials, err := registry.Credentials(ctx, ref)
		if errors.Is(err, registry.ErrNoImage) {
			err = command.Usage(err)
		}
		if err != nil {
			return wire.Progress{}, err
		}
		return s.begin(ctx, hub, wire.Add{Source: s.from, Name: s.name, Platform: s.platform, PlainHTTP: s.plainHTTP,
			Username: credentials.Username, Password: credentials.Password,
			Token: credentials.IdentityToken, RegistryToken: credentials.RegistryToken}, each)
	}
	local, err := registry.OpenLocal(s.from)
	if err != nil {
		return wire.Progress{}, command.Usage(err)
	}
	name := cmp.Or(s.name, local.Name)
	if name == "" {
		return wire.Progress{}, command.Usage(fmt.Errorf("%s contains no name for the image: add a NAME", s.from))
	}
	ref, err := wire.ParseName(name)
	if err != nil {
		return wire.Progress{}, command.Usage(err)
	}
	digest, err := local.Digest()
	if err != nil {
		return wire.Progress{}, fmt.Errorf("read %s: %w", s.from, err)
	}
	if ref.Digest != "" && ref.Digest != digest {
		return wire.Progress{}, command.Usage(fmt.Errorf("%s has the digest %s: use that digest in NAME, or a tag",
			s.from, digest))
	}
	// The image is pushed without its tag, because the hub would add every platform of a pushed
	// tag. The name is in the request that adds the image. That request is also sent before the
	// push: the hub may refuse it, or have the image already.
	request := wire.Add{Name: name, Digest: digest, Platform: s.platform}
	if last, err := s.begin(ctx, hub, request, each); !errors.Is(err, chunk.ErrNotFound) {
		return last, err
	}
	to := registry.Target{Repository: ref.Repository}
	to.Host, to.PlainHTTP, to.Transport = hub.Registry()
	if err := local.Push(ctx, to, func(done, total int64) {
		each(wire.Progress{Step: "push", Item: name, Bytes: done, Total: total})
	}); err != nil {
		return wire.Progress{}, err
	}
	return s.begin(ctx, hub, request, each)
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/converter"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/log"
	tonydus "github.com/containerd/nydus-snapshotter/pkg/converter"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
)

// convert converts an image to a nydus image, for this machine's platform.
func convert(ctx context.Context, builder, source, destination string, plainHTTP bool) (err error) {
	// Otherwise containerd's packages log that files are stored without fs-verity.
	if err := log.SetLevel("error"); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "nydus")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	store, err := local.NewLabeledStore(dir, &labels{of: map[digest.Digest]map[string]string{}})
	if err != nil {
		return err
	}
	platform := platforms.DefaultStrict()
	registry := docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(
		docker.WithPlainHTTP(func(string) (bool, error) { return plainHTTP, nil }))})
	name, image, err := registry.Resolve(ctx, source)
	if err != nil {
		return fmt.Errorf("fetch %s: %w", source, err)
	}
	fetcher, err := registry.Fetcher(ctx, name)
	if err != nil {
		return fmt.Errorf("fetch %s: %w", source, err)
	}
	children := images.LimitManifests(images.FilterPlatforms(images.ChildrenHandler(store), platform), platform, 1)
	if err := images.Dispatch(ctx, images.Handlers(remotes.FetchHandler(store, fetcher), children), nil,
		image); err != nil {
		return fmt.Errorf("fetch %s: %w", source, err)
	}
	layers := tonydus.LayerConvertFunc(tonydus.PackOption{BuilderPath: builder, FsVersion: "6"})
	merge := tonydus.ConvertHookFunc(tonydus.MergeOption{BuilderPath: builder, FsVersion: "6", OCI: true})
	converted, err := converter.IndexConvertFuncWithHook(layers, true, platform,
		converter.ConvertHooks{PostConvertHook: merge})(ctx, store, image)
	if err != nil {
		return fmt.Errorf("convert %s: %w", source, err)
	}
	pusher, err := registry.Pusher(ctx, destination)
	if err != nil {
		return fmt.Errorf("push %s: %w", destination, err)
	}
	if err := remotes.PushContent(ctx, pusher, *converted, store, nil, platform, nil); err != nil {
		return fmt.Errorf("push %s: %w", destination, err)
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]string{"reference": destination,
		"digest": converted.Digest.String(), "kind": "nydus"})
}

// labels keeps the labels of a store's blobs in memory. The peer's functions use labels to pass on
// their results.
type labels struct {
	mu sync.Mutex
	of map[digest.Digest]map[string]string
}

func (l *labels) Get(blob digest.Digest) (map[string]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.of[blob]), nil
}

func (l *labels) Set(blob digest.Digest, values map[string]string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of[blob] = maps.Clone(values)
	return nil
}

func (l *labels) Update(blob digest.Digest, changes map[string]string) (map[string]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	values := maps.Clone(l.of[blob])
	if values == nil {
		values = map[string]string{}
	}
	for name, value := range changes {
		if values[name] = value; value == "" {
			delete(values, name)
		}
	}
	l.of[blob] = values
	return maps.Clone(values), nil
}

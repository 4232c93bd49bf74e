package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/stargz-snapshotter/service"
	"github.com/containerd/stargz-snapshotter/service/resolver"
	"github.com/pelletier/go-toml/v2"
	"google.golang.org/grpc"
)

type snapshotterOptions struct {
	root      string   // directory of the snapshotter's data
	address   string   // path of the snapshotter's socket
	config    string   // the peer's configuration file; empty: its defaults
	logLevel  string   // "info", "debug" and so on
	plainHTTP []string // hosts of registries that are accessed without TLS
}

// serve serves containerd until the context ends. Then it unmounts everything.
func serve(ctx context.Context, o snapshotterOptions) (err error) {
	config, err := readConfig(o.config)
	if err != nil {
		return err
	}
	for _, host := range o.plainHTTP {
		usePlainHTTP(&config, host)
	}
	// The snapshotter uses its context for background work, so the context must outlive the last
	// request.
	snapshotter, err := service.NewStargzSnapshotterService(context.WithoutCancel(ctx), o.root, &config)
	if err != nil {
		return fmt.Errorf("start the snapshotter on %s: %w", o.root, err)
	}
	defer func() { err = errors.Join(err, snapshotter.Close()) }()
	// Remove the socket of a killed process.
	if err := os.RemoveAll(o.address); err != nil {
		return err
	}
	listener, err := net.Listen("unix", o.address)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(snapshotter))
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", o.address, err)
	case <-ctx.Done():
	}
	server.Stop() // not GracefulStop: containerd keeps its connection open
	return <-served
}

// readConfig reads the peer's configuration file. Other settings have the values of the peer's
// daemon: mostly zero, which means the default of its packages.
func readConfig(path string) (config service.Config, err error) {
	config.DirectoryCacheConfig.Direct = true
	config.FuseConfig.MergeBufferSize, config.FuseConfig.MergeWorkerCount = 400<<20, 10
	if path == "" {
		return config, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return config, err
	}
	defer file.Close()
	decoder := toml.NewDecoder(file)
	decoder.DisallowUnknownFields() // otherwise a misspelt setting would have no effect in a measurement
	if err := decoder.Decode(&config); err != nil {
		var strict *toml.StrictMissingError
		if errors.As(err, &strict) {
			err = errors.New(strict.String())
		}
		return config, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}

// usePlainHTTP makes the peer access a registry without TLS: the peer's configuration expresses
// this as a mirror of the registry.
func usePlainHTTP(config *service.Config, host string) {
	if config.Host == nil {
		config.Host = map[string]resolver.HostConfig{}
	}
	entry := config.Host[host]
	entry.Mirrors = append(entry.Mirrors, resolver.MirrorConfig{Host: host, Insecure: true})
	config.Host[host] = entry
}

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
	root      string   // where it keeps its data
	address   string   // of its socket
	config    string   // the peer's configuration file; empty: its defaults
	logLevel  string   // "info", "debug" and so on
	plainHTTP []string // hosts of registries that are spoken to without TLS
}

// serve serves containerd until the context ends, and unmounts everything then.
func serve(ctx context.Context, o snapshotterOptions) (err error) {
	config, err := readConfig(o.config)
	if err != nil {
		return err
	}
	for _, host := range o.plainHTTP {
		usePlainHTTP(&config, host)
	}
	// Its context is that of what it does in the background, and has to outlive the last request.
	snapshotter, err := service.NewStargzSnapshotterService(context.WithoutCancel(ctx), o.root, &config)
	if err != nil {
		return fmt.Errorf("start the snapshotter on %s: %w", o.root, err)
	}
	defer func() { err = errors.Join(err, snapshotter.Close()) }()
	// A socket that a killed process left would be in the way.
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
	server.Stop() // containerd keeps its connection, so there is no waiting for its end
	return <-served
}

// readConfig reads the peer's configuration file. What it does not set is as in
// the peer's daemon: mostly zero, which its packages take for their defaults.
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
	decoder.DisallowUnknownFields() // or a setting that is not one would be measured as one
	if err := decoder.Decode(&config); err != nil {
		var strict *toml.StrictMissingError
		if errors.As(err, &strict) {
			err = errors.New(strict.String())
		}
		return config, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}

// usePlainHTTP has a registry asked without TLS: it is its own mirror, which is
// how the peer's configuration says that.
func usePlainHTTP(config *service.Config, host string) {
	if config.Host == nil {
		config.Host = map[string]resolver.HostConfig{}
	}
	entry := config.Host[host]
	entry.Mirrors = append(entry.Mirrors, resolver.MirrorConfig{Host: host, Insecure: true})
	config.Host[host] = entry
}

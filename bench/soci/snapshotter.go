package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/awslabs/soci-snapshotter/config"
	"github.com/awslabs/soci-snapshotter/fs"
	"github.com/awslabs/soci-snapshotter/metadata"
	"github.com/awslabs/soci-snapshotter/service"
	"github.com/awslabs/soci-snapshotter/ztoc"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"go.etcd.io/bbolt"
	"google.golang.org/grpc"
)

type snapshotterOptions struct {
	root       string // directory of the snapshotter's data
	address    string // path of the snapshotter's socket
	containerd string // containerd's socket, for the content of layers without an index
	config     string // SOCI's configuration file; empty: SOCI's defaults
	plainHTTP  string // the host of a registry that is accessed without TLS
}

// serve serves containerd until the context ends. Then it unmounts everything.
func serve(ctx context.Context, o snapshotterOptions) (err error) {
	settings, err := readConfig(o)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.root, 0o711); err != nil {
		return err
	}
	db, err := openMetadata(o.root, settings)
	if err != nil {
		return fmt.Errorf("open the metadata in %s: %w", o.root, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	store := func(layer *io.SectionReader, toc ztoc.TOC, options ...metadata.Option) (metadata.Reader, error) {
		return metadata.NewReader(db, layer, toc, options...)
	}
	// The snapshotter uses its context for background work, so the context must outlive the last
	// request.
	snapshotter, err := service.NewSociSnapshotterService(context.WithoutCancel(ctx), o.root, &settings.ServiceConfig,
		service.WithFilesystemOptions(fs.WithMetadataStore(store)))
	if err != nil {
		return fmt.Errorf("start the snapshotter on %s: %w", o.root, err)
	}
	defer func() { err = errors.Join(err, snapshotter.Close()) }()
	// Remove the socket of a killed process.
	if err := os.Remove(o.address); err != nil && !errors.Is(err, os.ErrNotExist) {
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

func readConfig(o snapshotterOptions) (*config.Config, error) {
	settings := config.NewConfig()
	if o.config != "" {
		var err error
		if settings, err = config.NewConfigFromToml(o.config); err != nil {
			return nil, err
		}
	}
	if settings.MetadataStore != "db" {
		return nil, fmt.Errorf("metadata_store %q is not supported, only db, SOCI's default",
			settings.MetadataStore)
	}
	settings.ContentStoreConfig.ContainerdAddress = o.containerd
	if o.plainHTTP != "" {
		// SOCI's configuration expresses plain HTTP as a mirror of the registry.
		if settings.Host == nil {
			settings.Host = map[string]config.HostConfig{}
		}
		settings.Host[o.plainHTTP] = config.HostConfig{Mirrors: []config.MirrorConfig{{Host: "http://" + o.plainHTTP,
			Insecure: true}}}
	}
	return settings, nil
}

// openMetadata opens the files' metadata as SOCI's daemon does.
func openMetadata(root string, settings *config.Config) (*bbolt.DB, error) {
	return bbolt.Open(filepath.Join(root, "metadata.db"), 0o600, &bbolt.Options{
		NoFreelistSync: true, InitialMmapSize: 64 << 20, FreelistType: bbolt.FreelistMapType,
		NoSync: settings.MetadataDBNoSync,
	})
}

package publish_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/publish"
)

// An object is stored before the catalog commits. If the commit fails, no object is left.
func ExamplePublisher_Publish() {
	if err := publishAndFail(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// stored before the commit: true
	// the database is away
	// left after it: false
}

func publishAndFail(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "publish-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c, err := catalog.Open(ctx, catalog.Place{Source: filepath.Join(dir, "catalog.db")})
	if err != nil {
		return err
	}
	defer c.Close()
	store, err := objects.Open(ctx, "file://"+filepath.Join(dir, "objects"))
	if err != nil {
		return err
	}
	defer store.Close()
	p := publish.New(c, store, filepath.Join(dir, "scratch"), "this process", slog.New(slog.DiscardHandler))

	staging, err := p.TempDir("example")
	if err != nil {
		return err
	}
	file := filepath.Join(staging, "record")
	if _, err := objects.CompressFile(file, []byte("the entries of a layer")); err != nil {
		return err
	}
	key := objects.LayerKey("sha256:" + strings.Repeat("0", 64))
	isStored := func() bool { _, err := store.Size(ctx, key); return err == nil }
	err = p.Publish(ctx, publish.Objects{Staged: []objects.Staged{{Key: key, Path: file}}},
		func(catalog.Claim) error { // the claim belongs into catalog.Publication
			fmt.Println("stored before the commit:", isStored())
			return errors.New("the database is away")
		})
	fmt.Println(err)
	fmt.Println("left after it:", isStored())
	return nil
}

package objects_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"lighter/hub/objects"
)

// A finished file becomes an object, which is read and then deleted. The bucket could also be
// "s3://NAME?region=REGION".
func Example() {
	if err := storeOne(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// the entries of a layer
	// found after its deletion: false
}

func storeOne(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "objects-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	store, err := objects.Open(ctx, "file://"+filepath.Join(dir, "objects"))
	if err != nil {
		return err
	}
	defer store.Close()

	file, key := filepath.Join(dir, "record"), objects.LayerKey("sha256:00")
	if _, err := objects.CompressFile(file, []byte("the entries of a layer")); err != nil {
		return err
	}
	if err := store.Publish(ctx, []objects.Staged{{Key: key, Path: file}}); err != nil {
		return err
	}
	r, err := store.OpenPlain(ctx, key)
	if err != nil {
		return err
	}
	plain, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		return err
	}
	fmt.Printf("%s\n", plain)

	if err := store.Delete(ctx, []string{key}); err != nil {
		return err
	}
	_, err = store.Size(ctx, key)
	fmt.Println("found after its deletion:", !errors.Is(err, objects.ErrNotFound))
	return nil
}

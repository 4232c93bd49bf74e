package hub_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"lighter/hub"
	"lighter/hub/backup"
	"lighter/hub/registry"
	"lighter/hub/rootdir"
	"lighter/wire"
)

// localConfig is hubConfig for a hub with an SQLite catalog and a directory of objects.
func localConfig(t *testing.T) hub.Config {
	t.Helper()
	c := hubConfig(t)
	c.Catalog, c.Bucket = "", ""
	return c
}

// startLocalHub runs a hub with localConfig.
func startLocalHub(t *testing.T) *testHub {
	t.Helper()
	return runHub(t, openHub(t, localConfig(t)))
}

// restored restores a backup into a new directory and runs a hub there.
func restored(h *testHub, dir string) *testHub {
	h.t.Helper()
	config := h.config
	config.Root = filepath.Join(h.t.TempDir(), "restored")
	if err := backup.Restore(h.t.Context(), dir, config.Root); err != nil {
		h.t.Fatal(err)
	}
	if err := backup.Restore(h.t.Context(), dir, config.Root); err == nil {
		h.t.Error("restored into a directory that is not empty")
	}
	return runHub(h.t, openHub(h.t, config))
}

func makeBackup(h *testHub, dir string) backup.Result {
	h.t.Helper()
	var last wire.Progress
	r, err := backup.Make(h.t.Context(), h.config.Root, dir, func(p wire.Progress) { last = p })
	if err != nil {
		h.t.Fatal(err)
	}
	if last.Bytes == 0 || last.Bytes != last.Total {
		h.t.Errorf("at the end, the progress is %+v, want all bytes done", last)
	}
	return r
}

// A hub restored from a backup has the same images and key, and ingests further images. A second
// backup into the same directory copies only new objects.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	h, dir := startLocalHub(t), filepath.Join(t.TempDir(), "backup")
	h.pushReady("a:1", image(lowerTar))
	h.idle()
	first := makeBackup(h, dir)
	if first.Objects == 0 || first.Copied != first.Objects {
		t.Errorf("the first backup: %+v, want all objects copied", first)
	}
	if info, err := os.Stat(rootdir.Key(dir)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key in the backup: %v, %v, want mode 0600", info, err)
	}
	if again := makeBackup(h, dir); again.Copied != 0 {
		t.Errorf("a backup of an unchanged hub: %+v, want no object copied", again)
	}
	h.pushReady("b:1", image(lowerTar, upperTar))
	h.idle()
	if second := makeBackup(h, dir); second.Copied == 0 || second.Copied >= second.Objects {
		t.Errorf("the second backup: %+v, want some of the objects copied", second)
	}
	if held, err := h.Catalog().Claims.IsHeld(t.Context()); err != nil || held {
		t.Errorf("after the backup, deletions are still held back (%v)", err)
	}
	before, err := h.Catalog().Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again := restored(h, dir)
	if got, err := again.Catalog().Inventory(t.Context()); err != nil || got != before {
		t.Errorf("the restored hub has %+v (%v), want %+v", got, err, before)
	}
	if !again.PublicKeys()[0].Equal(h.PublicKeys()[0]) {
		t.Error("the restored hub has another key")
	}
	again.wantClean("after the restore", "a:1", "b:1")
	again.pushReady("c:1", image(upperTar))
	again.wantClean("with another image", "a:1", "b:1", "c:1")
	h.wantClean("the first hub", "a:1", "b:1")
}

// If an image is removed between two backups into one directory, a restore of the second one does
// not have it.
func TestBackupForgetsRemovedImages(t *testing.T) {
	t.Parallel()
	h, dir := startLocalHub(t), filepath.Join(t.TempDir(), "backup")
	h.pushReady("a:1", image(lowerTar, upperTar))
	h.pushReady("b:1", image(lowerTar))
	h.idle()
	makeBackup(h, dir)
	if err := h.client.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	makeBackup(h, dir)
	again := restored(h, dir)
	if m, err := again.Registry().Repository("a").Manifest(t.Context(), "1"); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("the restored registry has the removed image %s (%v)", m.Digest, err)
	}
	if check := again.fsck(wire.Fsck{Deep: true, Repair: true}); len(check.Findings) != 0 {
		t.Errorf("after the restore: %s", findings(check))
	}
	again.wantClean("after the repair", "b:1")
	if images := again.settled("a:1"); len(images) != 0 {
		t.Errorf("the restored hub has the removed images %+v", images)
	}
}

// An object that is damaged during the first backup, and repaired before the second one, is whole
// in the second one.
func TestBackupOfRepairedObjects(t *testing.T) {
	t.Parallel()
	h, dir := startLocalHub(t), filepath.Join(t.TempDir(), "backup")
	h.pushReady("a:1", image(lowerTar, upperTar))
	h.idle()
	damaged := 0
	for _, key := range files(t, objectsDir(h.config)) {
		if strings.HasPrefix(key, "packs/") { // repaired chunks get other packs
			continue
		}
		file := filepath.Join(objectsDir(h.config), key)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 0x40
		write(t, file, b)
		damaged++
	}
	makeBackup(h, dir)
	if check := h.fsck(wire.Fsck{Deep: true, Repair: true}); check.Left() != 0 || damaged == 0 {
		t.Fatalf("%d objects were damaged, and not all repaired: %s", damaged, findings(check))
	}
	h.idle()
	makeBackup(h, dir)
	restored(h, dir).wantClean("after the restore", "a:1")
}

// A backup that is made while images are pushed and removed can be restored and repaired.
func TestBackupWhileImagesComeAndGo(t *testing.T) {
	t.Parallel()
	h, dir := startLocalHub(t), filepath.Join(t.TempDir(), "backup")
	h.pushReady("stays:1", image(lowerTar))
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	work.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			name := fmt.Sprintf("comes:%d", i)
			h.pushReady(name, image(lowerTar, upperTar))
			if err := h.client.Remove(t.Context(), name); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 3 {
		makeBackup(h, dir)
	}
	cancel()
	work.Wait()
	again := restored(h, dir)
	again.idle()
	// Images may have been pushed or removed between the copies of the catalog and of the registry.
	if check := again.fsck(wire.Fsck{Deep: true, Repair: true}); check.Left() > 0 {
		t.Errorf("the restored hub: %s", findings(check))
	}
	again.wantClean("after the restore", "stays:1")
	if problems := again.problems("stays:1"); problems != "" {
		t.Error(problems)
	}
}

// A backup of a hub that has lost objects fails, and cannot be restored.
func TestIncompleteBackup(t *testing.T) {
	t.Parallel()
	h, dir := startLocalHub(t), filepath.Join(t.TempDir(), "backup")
	h.pushReady("a:1", image(lowerTar))
	h.idle()
	h.loseObjects()
	if _, err := backup.Make(t.Context(), h.config.Root, dir, silent); err == nil {
		t.Error("a backup of lost objects succeeded")
	}
	if err := backup.Restore(t.Context(), dir, t.TempDir()); err == nil {
		t.Error("an incomplete backup was restored")
	}
}

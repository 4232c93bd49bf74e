package containerd

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// killDir is an environment variable. If it is set, TestKilled runs in the process that is killed,
// with this directory of snapshots.
const killDir = "LIGHTER_TEST_KILL_DIR"

// Processes that make and remove snapshots are killed, each a little later than the previous one.
// When the next process starts, the directories match the store.
func TestKilled(t *testing.T) {
	if dir := os.Getenv(killDir); dir != "" {
		churn(t, dir)
	}
	dir := filepath.Join(t.TempDir(), "snapshots")
	for lines := 1; lines <= 40; lines += 4 {
		killAfter(t, dir, lines)
		checkStore(t, dir)
	}
}

// churn makes and removes snapshots without end, and prints a line before each step.
func churn(t *testing.T, dir string) {
	chains := newFake(t)
	chains.known[chainID("1")] = true
	sn := open(t, dir, chains)
	for i := 0; ; i++ {
		for _, step := range []step{
			prepare("extract", "", ref(chainID("1"))), prepare("a", lazyName(chainID("1"), noParent)),
			prepare("b", ""), commit(fmt.Sprint(os.Getpid(), " ", i), "b"), view("c", fmt.Sprint(os.Getpid(), " ", i)),
			remove("c"), remove("a"), remove(lazyName(chainID("1"), noParent)), cleanup,
		} {
			fmt.Println("next")
			if _, err := step(t.Context(), sn); err != nil && !errdefs.IsAlreadyExists(err) {
				t.Fatal(err)
			}
		}
	}
}

// killAfter runs churn in a process, and kills the process after it has printed a number of lines.
func killAfter(t *testing.T, dir string, lines int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), killDir+"="+dir, "TMPDIR="+filepath.Dir(dir))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	scanner := bufio.NewScanner(out)
	for ; lines > 0; lines-- {
		if !scanner.Scan() || scanner.Text() != "next" {
			t.Errorf("the process printed %q (%v), want next", scanner.Text(), scanner.Err())
			break
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // it was killed
}

// checkStore opens the store, checks the directories, and removes the snapshots with fixed names,
// so that the next process can make them. The snapshots that churn committed stay.
func checkStore(t *testing.T, dir string) {
	t.Helper()
	chains := newFake(t)
	sn := open(t, dir, chains)
	defer sn.Close()
	directories := 0
	err := sn.Walk(t.Context(), func(_ context.Context, info snapshots.Info) error {
		if _, lazy := chainOf(info.Name); lazy {
			return nil
		}
		directories++
		_, err := sn.Usage(t.Context(), info.Name)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	const others = 2 // metadata.db and emptyDir
	if found := len(entries(t, sn)); found != directories+others {
		t.Errorf("got entries %v, want %d directories of snapshots and %d others", entries(t, sn), directories, others)
	}
	for _, key := range []string{"a", "b", "c", lazyName(chainID("1"), noParent)} {
		if err := sn.Remove(t.Context(), key); err != nil && !errdefs.IsNotFound(err) {
			t.Error(err)
		}
	}
}

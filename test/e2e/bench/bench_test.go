//go:build e2e

// Package bench tests the benchmark: a small run over a link with a delay, and an interrupted run.
package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"lighter/bench/starts"
	"lighter/test/testkit/site"
)

// config has a workload for each kind of readiness, over a link whose round-trip time dominates.
const config = `
recorded = 1

[[link]]
name = "far"
rate = "200mbit"
rtt = "80ms"

[[image]]
name = "base"
[[image.workload]]
name = "ends"
argv = ["echo", "hello"]

[[image]]
name = "served"
layout = "LAYOUT"
[[image.workload]]
name = "writes"
argv = ["sh", "-c", "echo starting; echo now ready; exec sleep infinity"]
ready_line = "^now re"
[[image.workload]]
name = "serves"
ready_port = 8080
ready_path = "page"
argv = ["perl", "-MIO::Socket::INET", "-e", '''
$server = IO::Socket::INET->new(LocalPort => 8080, Listen => 5) or die $!;
while ($client = $server->accept) {
	$request = <$client>;
	1 while <$client> =~ /\S/;
	print $client "HTTP/1.0 ", ($request =~ m{^GET /page } && $asked++ ? "200 OK" : "503 Not yet"), "\r\n\r\n";
	close $client;
}''']

# One that has no hub unpacks as overlayfs does.
[[peer]]
name = "other"
snapshotter = "another"
command = ["{dir}/lighter", "node", "--root", "{root}", "--address", "{socket}", "--mount-mode", "none"]
exports = { enable_remote_snapshot_annotations = "true" }
suffix = "-other"
convert = ["skopeo", "copy", "--quiet", "--insecure-policy", "--src-tls-verify=false", "--dest-tls-verify=false",
	"docker://{source}", "docker://{target}"]
`

const farRTT = 0.08

// benchmark returns the command of the benchmark program.
func benchmark(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	work, err := site.Work()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "bench.toml")
	text := strings.Replace(config, "LAYOUT", filepath.Join(work, "images/base"), 1)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return exec.CommandContext(t.Context(), lighter+"-bench", append([]string{"--config", file}, args...)...)
}

// measure runs the benchmark and returns the path of its results.
func measure(t *testing.T, args ...string) string {
	t.Helper()
	out := t.TempDir()
	if text, err := benchmark(t, append(args, "--rounds", "1", "--out", out)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return filepath.Join(out, "starts.json")
}

func TestSmallRun(t *testing.T) {
	merged := t.TempDir()
	cmd := benchmark(t, "--merge", "--out", merged, measure(t, "--only", "base/ends"),
		measure(t, "--only", "served", "--snapshotters", "overlayfs"))
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	r, err := starts.Read(filepath.Join(merged, "starts.json"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]starts.Sample{}
	for _, s := range r.Samples {
		seen[s.Workload+" "+s.Way] = s
	}
	compressed := r.Images[0].Compressed
	for _, what := range []string{"ends overlayfs", "ends lighter-first", "ends lighter", "ends lighter-local",
		"ends other", "writes overlayfs", "serves overlayfs"} {
		s, ok := seen[what]
		if !ok {
			t.Errorf("%s was not measured", what)
			continue
		}
		if s.Pull < 4*farRTT || s.Create <= 0 || s.Ready <= 0 || s.Run < s.Ready || s.SecondCreate <= 0 ||
			s.SecondReady <= 0 || s.Second <= s.SecondReady {
			t.Errorf("%s: times %+v", what, s)
		}
		if (s.Workload == "ends") != (s.Run == s.Ready) {
			t.Errorf("%s: ready after %v s, ended after %v s", what, s.Ready, s.Run)
		}
		if s.PullBytes <= 0 || s.ReadyBytes < s.PullBytes || s.Bytes < s.ReadyBytes {
			t.Errorf("%s: bytes %+v", what, s)
		}
		lazy := s.Way != starts.Overlayfs && s.Way != "other"
		if lazy && s.Bytes > compressed/5 || !lazy && s.PullBytes < compressed {
			t.Errorf("%s received %d of %d bytes over the link, %d during the pull", what, s.Bytes, compressed,
				s.PullBytes)
		}
		if lazy != (s.Read > 0) || (lazy && s.Way != starts.LighterLocal) != (s.Fetched > 0) {
			t.Errorf("%s: %d bytes read, %d fetched", what, s.Read, s.Fetched)
		}
	}
	if len(seen) != 7 {
		t.Errorf("got %d cells, want 7", len(seen))
	}
	if local := seen["ends lighter-local"].Bytes; local > 64<<10 {
		t.Errorf("received %d bytes over the link with a complete local image", local)
	}
	for _, name := range []string{"starts.md", "starts-far.svg", "bytes-far.svg", "read.svg"} {
		if !exists(filepath.Join(merged, name)) {
			t.Errorf("the run did not write %s", name)
		}
	}
}

func TestInterruptLeavesNothing(t *testing.T) {
	work, err := site.Work()
	if err != nil {
		t.Fatal(err)
	}
	cmd := benchmark(t, "--out", t.TempDir())
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "ingested by the hub") { // now the measurements start
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 ||
		!strings.HasSuffix(said.String(), "lighter-bench: interrupted\n") {
		t.Errorf("the benchmark ended with %v: %s", err, said.String())
	}
	if dir := filepath.Join(work, fmt.Sprintf("site-%d", cmd.Process.Pid)); exists(dir) {
		t.Errorf("%s is left", dir)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

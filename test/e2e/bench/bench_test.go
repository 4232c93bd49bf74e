//go:build e2e

// Package bench tests lighter-bench: a small run over a link with a delay, and an interrupted run.
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
	"lighter/test/testkit/workdir"
)

// config has a workload for each condition under which a container is ready: its process ends, it
// prints a line, or its server answers. The link's round-trip time dominates the measured times.
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

# This peer is a node without a hub, so it unpacks images as overlayfs does.
[[peer]]
name = "other"
snapshotter = "another"
command = ["{dir}/lighter", "node", "--root", "{root}", "--address", "{socket}", "--mount-mode", "none"]
exports = { enable_remote_snapshot_annotations = "true" }
suffix = "-other"
convert = ["skopeo", "copy", "--quiet", "--insecure-policy", "--src-tls-verify=false", "--dest-tls-verify=false",
	"docker://{source}", "docker://{target}"]
`

const farRTT = 0.08 // round-trip time of the link "far", in seconds

// benchmark returns a command that runs lighter-bench with config and args.
func benchmark(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	work, err := workdir.Path()
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

// measure runs one round of the benchmark and returns the path of the results.
func measure(t *testing.T, args ...string) string {
	t.Helper()
	out := t.TempDir()
	if text, err := benchmark(t, append(args, "--rounds", "1", "--out", out)...).CombinedOutput(); err != nil {
		t.Fatalf("run the benchmark: %v: %s", err, text)
	}
	return filepath.Join(out, "starts.json")
}

// The results of two partial runs are merged. Each workload was measured with each requested
// snapshotter, and the times and bytes are plausible.
func TestSmallRun(t *testing.T) {
	merged := t.TempDir()
	cmd := benchmark(t, "--merge", "--out", merged, measure(t, "--only", "base/ends"),
		measure(t, "--only", "served", "--snapshotters", "overlayfs"))
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("merge the results: %v: %s", err, text)
	}
	r, err := starts.Read(filepath.Join(merged, "starts.json"))
	if err != nil {
		t.Fatal(err)
	}
	samples := map[string]starts.Sample{} // by workload and snapshotter
	for _, s := range r.Samples {
		samples[s.Workload+" "+s.Way] = s
	}
	compressed := r.Images[0].Compressed
	for _, cell := range []string{"ends overlayfs", "ends lighter-first", "ends lighter", "ends lighter-local",
		"ends other", "writes overlayfs", "serves overlayfs"} {
		s, ok := samples[cell]
		if !ok {
			t.Errorf("%s was not measured", cell)
			continue
		}
		if s.Pull < 4*farRTT || s.Create <= 0 || s.Ready <= 0 || s.Run < s.Ready || s.SecondCreate <= 0 ||
			s.SecondReady <= 0 || s.Second <= s.SecondReady {
			t.Errorf("%s: got the times %+v, want a pull of at least %v s, a run that is not shorter than ready, and "+
				"no other time of zero", cell, s, 4*farRTT)
		}
		if (s.Workload == "ends") != (s.Run == s.Ready) {
			t.Errorf("%s: ready after %v s, ended after %v s, want equal times for the workload that is ready at its "+
				"end, and only for it", cell, s.Ready, s.Run)
		}
		if s.PullBytes <= 0 || s.CreateBytes < s.PullBytes || s.ReadyBytes < s.CreateBytes || s.Bytes < s.ReadyBytes {
			t.Errorf("%s: got the bytes %+v, want them above zero, and not to fall from pull to create to ready to end",
				cell, s)
		}
		lazy := s.Way != starts.Overlayfs && s.Way != "other"
		if lazy && s.Bytes > compressed/5 || !lazy && s.PullBytes < compressed {
			t.Errorf("%s received %d bytes over the link, %d of them during the pull, for an image of %d bytes; want "+
				"at most a fifth if it is lazy, and the whole image during the pull if not; lazy: %t", cell, s.Bytes,
				s.PullBytes, compressed, lazy)
		}
		if lazy != (s.Read > 0) || (lazy && s.Way != starts.LighterLocal) != (s.Fetched > 0) {
			t.Errorf("%s: the kernel read %d bytes and the node fetched %d, want some only for Lighter, and none "+
				"fetched for a local image", cell, s.Read, s.Fetched)
		}
	}
	if len(samples) != 7 {
		t.Errorf("got %d pairs of workload and snapshotter, want 7", len(samples))
	}
	if local := samples["ends lighter-local"].Bytes; local > 64<<10 {
		t.Errorf("received %d bytes over the link with a local image, want %d at most", local, 64<<10)
	}
	for _, name := range []string{"starts.md", "starts-far.svg", "bytes-far.svg", "read.svg"} {
		if !exists(filepath.Join(merged, name)) {
			t.Errorf("the merge did not write %s", name)
		}
	}
}

// An interrupt ends the benchmark with the error "interrupted". The site's directory is removed.
func TestInterruptLeavesNothing(t *testing.T) {
	work, err := workdir.Path()
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
	var output bytes.Buffer
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		output.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "ingested by the hub") { // the benchmark is under way
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 ||
		!strings.HasSuffix(output.String(), "lighter-bench: interrupted\n") {
		t.Errorf("the interrupted benchmark ended with %v, want exit code 1 and the error \"interrupted\": %s", err,
			output.String())
	}
	if dir := filepath.Join(work, fmt.Sprintf("site-%d", cmd.Process.Pid)); exists(dir) {
		t.Errorf("the interrupted benchmark left %s", dir)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

package prefetch

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/format/guess"
	"lighter/format/index"
	"lighter/format/tree"
	"lighter/test/testkit/filetree"
)

// scripted returns the device of a tree whose program is a script. Each of the scripts names the
// next one as its interpreter. Nothing is cached.
func scripted(t *testing.T, scripts int, options Options) (d *Device, s *shelf, names map[chunk.ID]string) {
	t.Helper()
	s = &shelf{chunks: map[chunk.ID][]byte{}, cached: map[chunk.ID]bool{}, requested: map[chunk.ID]int{}, keeps: true}
	names = map[chunk.ID]string{}
	var files []tree.Dirent
	for i := range scripts + 1 {
		name := fmt.Sprint("script", i)
		text := fmt.Sprintf("#!/script%d\n", i+1)
		if i == scripts {
			name, text = "unused", ""
		}
		plain := []byte(text + strings.Repeat("# "+name+"\n", 1000))
		id := chunk.Sum(plain)
		s.chunks[id], names[id] = plain, name
		n := &tree.Node{Mode: tree.ModeRegular | 0o755, Nlink: 1, Size: int64(len(plain))}
		n.Content.Extents = []tree.Extent{{ID: id, Length: int64(len(plain))}}
		files = append(files, tree.Dirent{Name: name, Node: n})
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "metadata"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	extents := filetree.Write(t, tree.NewDir(tree.Node{Mode: 0o755}, files), file)
	d = s.open(extents, nil, options)
	d.GuessFrom(file.Name())
	return d, s, names
}

// startsWith is the config of an image that runs the first script.
func startsWith(program string) func(chunk.ID) (guess.Config, bool) {
	return func(chunk.ID) (guess.Config, bool) {
		return guess.Config{Cmd: []string{program}}, program != ""
	}
}

// A guess fetches a program, then what the program names, and so on. After the first step it goes
// on only if the RTT is long.
func TestGuessGoesOnWithWhatItHasFetched(t *testing.T) {
	for name, test := range map[string]struct {
		options Options
		perRTT  int64
		begins  bool
		want    string
	}{
		"long path": {Options{Limit: plenty, Config: startsWith("/script0")}, 1 << 20, true,
			"script0 script1 script2"},
		"short path":     {Options{Limit: plenty, Config: startsWith("/script0")}, 0, true, "script0"},
		"off":            {Options{Config: startsWith("/script0")}, 1 << 20, false, ""},
		"another image":  {Options{Limit: plenty, Config: startsWith("")}, 1 << 20, false, ""},
		"nobody knows":   {Options{Limit: plenty}, 1 << 20, false, ""},
		"no such script": {Options{Limit: plenty, Config: startsWith("/script9")}, 1 << 20, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d, s, names := scripted(t, 3, test.options)
			s.perRTT = test.perRTT
			for range 2 {
				if got := d.Begin(); got != test.begins {
					t.Errorf("Begin returned %t, want %t", got, test.begins)
				}
			}
			d.guesses.work.Wait()
			var got []string
			for id := range maps.Keys(s.requested) {
				got = append(got, names[id])
				if s.requested[id] > 1 {
					t.Errorf("%s was requested %d times", names[id], s.requested[id])
				}
			}
			slices.Sort(got)
			if got := strings.Join(got, " "); got != test.want {
				t.Errorf("requested %q, want %q", got, test.want)
			}
		})
	}
}

// Startup packs go before a guess, and make it unnecessary.
func TestNoGuessWithStartupPacks(t *testing.T) {
	d, s, _ := scripted(t, 3, Options{Limit: plenty, Config: startsWith("/script0")})
	s.perRTT = 1 << 20
	h := &startHub{extents: d.Extents(), locations: index.NewLocations(d.Extents().ID())}
	for i := range d.Extents().Extents {
		h.locations.Add(unitOf(i))
	}
	h.startups = []index.Startup{{Pack: unitOf(0).Pack, Units: []uint32{100}, AtMount: true}}
	d.SetLocations(h.open(t))
	if !d.Begin() {
		t.Error("no pack is wanted at mount")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if got := len(s.requested); got > 1 {
		t.Errorf("%d chunks were requested, want only that of the startup pack", got)
	}
}

// What was guessed in vain ends the guess, and so does a lack of memory.
func TestGuessEnds(t *testing.T) {
	for _, blocked := range []error{nil, errors.New("short of memory")} {
		d, s, _ := scripted(t, 3, Options{Limit: plenty, Config: startsWith("/script0"),
			Blocked: func() error { return blocked }})
		s.perRTT = 1 << 20
		d.SetLocations(alone(t, d))
		if blocked == nil {
			d.guesses.account.added.Store(startupCredit + 1)
		}
		d.Begin()
		d.guesses.work.Wait()
		if fetched, queued := len(s.requested), len(d.requests.refs); fetched > 0 || queued > 0 {
			t.Errorf("blocked %v: %d chunks are fetched, and %d queued, want none", blocked, fetched, queued)
		}
	}
}

// A closed device guesses nothing more.
func TestNoGuessAfterTheEnd(t *testing.T) {
	d, s, _ := scripted(t, 3, Options{Limit: plenty, Config: startsWith("/script0")})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d.Begin()
	d.guesses.work.Wait()
	if len(s.requested) > 0 {
		t.Errorf("%d chunks were requested after the end", len(s.requested))
	}
}

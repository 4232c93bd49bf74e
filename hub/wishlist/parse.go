package wishlist

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"lighter/hub/pull"
	"lighter/wire"
)

// Line is a line of a list.
type Line struct {
	N    int64 // from 1
	Text string
	// Repository is HOST[:PORT]/PATH, in containerd's form.
	Repository string
	// Tag may have *. With a digest there is no tag.
	Tag, Digest string
	PlainHTTP   bool
}

// Source returns the source of the line's image, or of one of its tags.
func (l Line) Source(tag string) string {
	if l.Digest != "" {
		return "docker://" + l.Repository + "@" + l.Digest
	}
	return "docker://" + l.Repository + ":" + tag
}

// isPattern reports whether the line is about all tags that match.
func (l Line) isPattern() bool { return strings.Contains(l.Tag, "*") }

// Parsed is what a file says.
type Parsed struct {
	Lines    []Line
	Problems []wire.WishlistProblem
	Notes    []string
}

// noUse are DUCC's settings that do not apply to a hub.
var noUse = []string{"user", "cvmfs_repo", "output_format", "ignoreErrors"}

// Parse parses a YAML file: DUCC's wishlists of version 1, which are accepted as they are. The
// error is about the whole file; lines that are wrong are in Parsed.Problems.
func Parse(text []byte) (p Parsed, err error) {
	if len(text) > maxText {
		return p, errTooLong
	}
	// A node keeps aliases as they are: they are never expanded, so they cannot make a file large.
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return p, err
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return p, errors.New("want a mapping with a list named input")
	}
	input := false
	var unused, unknown []string
	for pair := range slices.Chunk(document.Content[0].Content, 2) {
		switch key, value := pair[0], pair[1]; {
		case key.Value == "version":
			if value.Value != "1" {
				return p, fmt.Errorf("line %d: version is %q: want 1", value.Line, short(value.Value))
			}
		case key.Value == "input":
			if input = true; value.Kind != yaml.SequenceNode && value.Tag != "!!null" {
				return p, fmt.Errorf("line %d: input has to be a list", value.Line)
			}
			if len(value.Content) > maxLines {
				return p, fmt.Errorf("it has %d lines: want %d at most", len(value.Content), maxLines)
			}
			for _, item := range value.Content {
				p.add(item)
			}
		case slices.Contains(noUse, key.Value):
			unused = append(unused, key.Value)
		default:
			unknown = append(unknown, short(key.Value))
		}
	}
	if !input {
		return p, errors.New("it has no list named input")
	}
	if len(unused) > 0 {
		p.Notes = append(p.Notes, "a hub has no use for "+strings.Join(unused, ", "))
	}
	if len(unknown) > 0 {
		p.Notes = append(p.Notes, "unknown and ignored: "+strings.Join(unknown[:min(len(unknown), 10)], ", "))
	}
	return p, nil
}

func (p *Parsed) add(item *yaml.Node) {
	if item.Kind != yaml.ScalarNode {
		p.Problems = append(p.Problems, wire.WishlistProblem{Line: int64(item.Line),
			Why: "want one image, as a text: no list, mapping or alias"})
		return
	}
	p.addText(int64(item.Line), item.Value)
}

func (p *Parsed) addText(n int64, text string) {
	line, err := parseLine(text)
	if err != nil {
		p.Problems = append(p.Problems, wire.WishlistProblem{Line: n, Text: short(text), Why: err.Error()})
		return
	}
	line.N = n
	p.Lines = append(p.Lines, line)
}

// short bounds a text of a list that an error or a result quotes.
func short(text string) string {
	const most = 200
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "?")
}

// dockerHub is the name of Docker Hub in images' names. Lists also name it by the hosts dockerHubs.
const dockerHub = "docker.io"

var dockerHubs = []string{"registry.hub.docker.com", "registry-1.docker.io", "index.docker.io", "hub.docker.com"}

// tagPattern is what a tag with * may be.
var tagPattern = regexp.MustCompile(`^[A-Za-z0-9_.*-]{1,128}$`)

// parseLine parses [SCHEME://]HOST/REPOSITORY[:TAG][@DIGEST]. SCHEME is https, http or docker.
func parseLine(text string) (l Line, err error) {
	l.Text = text
	if len(text) > maxLine {
		return l, fmt.Errorf("it is longer than %d bytes", maxLine)
	}
	scheme, bare, ok := strings.Cut(strings.TrimSpace(text), "://")
	if !ok {
		scheme, bare = "https", strings.TrimSpace(text)
	}
	switch scheme {
	case "https", "docker":
	case "http":
		l.PlainHTTP = true
	default:
		return l, fmt.Errorf("the scheme %q: want https://, http:// or none", short(scheme))
	}
	host, path, ok := strings.Cut(bare, "/")
	if !ok || path == "" {
		return l, errors.New("want HOST/REPOSITORY[:TAG]")
	}
	if slices.Contains(dockerHubs, host) {
		host = dockerHub
	}
	bare = host + "/" + path
	path, tag := cutTag(bare)
	if strings.Contains(path, "*") {
		return l, errors.New("* may be in the tag only")
	}
	if strings.Contains(tag, "*") {
		if !tagPattern.MatchString(tag) {
			return l, fmt.Errorf("%q is no pattern of tags: want letters, digits and _.-*", tag)
		}
		bare, l.Tag = path, tag
	}
	ref, name, err := pull.ParseSource("docker://" + bare)
	if err != nil {
		return l, fmt.Errorf("%q is no image: want HOST/REPOSITORY[:TAG|@DIGEST]", short(bare))
	}
	parsed, err := wire.ParseName(name)
	if err != nil {
		return l, err
	}
	l.Repository, l.Digest = pull.RepositoryOf(ref), parsed.Digest
	if l.Tag == "" {
		l.Tag = parsed.Tag
	}
	return l, nil
}

// cutTag separates the tag from the rest of HOST[:PORT]/PATH[:TAG][@DIGEST], unless there is a
// digest.
func cutTag(text string) (path, tag string) {
	i := strings.LastIndexByte(text, ':')
	if i <= strings.LastIndexByte(text, '/') || strings.Contains(text, "@") {
		return text, ""
	}
	return text[:i], text[i+1:]
}

// matchTag reports whether a tag matches a pattern, in which * matches any characters.
func matchTag(pattern, tag string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == tag
	}
	first, last := parts[0], parts[len(parts)-1]
	if len(tag) < len(first)+len(last) || !strings.HasPrefix(tag, first) || !strings.HasSuffix(tag, last) {
		return false
	}
	tag = tag[len(first) : len(tag)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(tag, part)
		if i < 0 {
			return false
		}
		tag = tag[i+len(part):]
	}
	return true
}

package wishlist

import (
	"context"
	"fmt"
	"strings"
)

// read reads the list's files and URLs. If a URL cannot be read, its last contents count.
func (p *pass) read(ctx context.Context) {
	if p.list.File != "" {
		text, err := readFile(p.list.File)
		p.parse(p.list.File, text, err)
	}
	for _, u := range p.list.URLs {
		got, err := fetch(ctx, p.config.Fetch(strings.HasPrefix(u, "http://")), u, p.before[u])
		if err != nil {
			p.lack(lineOf{of: shown(u)}, err)
			if got = p.before[u]; got.Text == nil {
				continue
			}
		}
		p.after[u] = got
		p.parse(shown(u), got.Text, nil)
	}
	if p.list.Text != "" {
		p.parse("the added file", []byte(p.list.Text), nil)
	}
	var images Parsed
	for i, text := range p.list.Images {
		images.addText(int64(i+1), text)
	}
	p.take("images", images)
}

func (p *pass) parse(of string, text []byte, err error) {
	var parsed Parsed
	if err == nil {
		parsed, err = Parse(text)
	}
	if err != nil {
		p.lack(lineOf{of: of}, err)
		return
	}
	p.take(of, parsed)
}

func (p *pass) take(of string, parsed Parsed) {
	for _, l := range parsed.Lines {
		if len(p.lines) == maxLines {
			p.lack(lineOf{Line: l, of: of}, fmt.Errorf("the list has more than %d lines: this and the next are not "+
				"done", maxLines))
			break
		}
		l.PlainHTTP = l.PlainHTTP || p.list.PlainHTTP
		p.lines = append(p.lines, lineOf{Line: l, of: of})
	}
	for _, problem := range parsed.Problems {
		problem.Of = of
		p.problem(problem)
	}
	for _, note := range parsed.Notes {
		p.result.Notes = append(p.result.Notes, of+": "+note)
	}
}

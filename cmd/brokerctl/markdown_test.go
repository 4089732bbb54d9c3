package main

import (
	"strings"
	"testing"
)

func TestMarkdown_TextsOfAgentsBreakNoTable(t *testing.T) {
	table := newMarkdownTable("A", "Empty", "B")
	table.row("one | two", "", "`code` **bold** _it_ [x](y) <b>&amp;</b> ~~no~~ back\\slash")
	table.row("line\nbreak\r\n| --- |", "", "\x1b[31mred\u202e")
	var b strings.Builder
	table.write(&b)
	want := "| A | B |\n| --- | --- |\n" +
		"| one \\| two | \\`code\\` \\*\\*bold\\*\\* \\_it\\_ \\[x\\](y) \\<b\\>\\&amp;\\</b\\> \\~\\~no\\~\\~ back\\\\slash |\n" +
		"| line break \\| --- \\| | \ufffd\\[31mred\ufffd |\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	b.Reset()
	newMarkdownTable("A").write(&b)
	if b.Len() > 0 {
		t.Errorf("a table without rows is %q", b.String())
	}
}

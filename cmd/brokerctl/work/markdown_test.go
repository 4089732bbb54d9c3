package work

import (
	"strings"
	"testing"
)

func TestMarkdown_TextsOfAgentsBreakNoTable(t *testing.T) {
	table := NewMarkdownTable("A", "Empty", "B")
	table.Row("one | two", "", "`code` **bold** _it_ [x](y) <b>&amp;</b> ~~no~~ back\\slash")
	table.Row("line\nbreak\r\n| --- |", "", "\x1b[31mred\u202e")
	var b strings.Builder
	table.Write(&b)
	want := "| A | B |\n| --- | --- |\n" +
		"| one \\| two | \\`code\\` \\*\\*bold\\*\\* \\_it\\_ \\[x\\](y) \\<b\\>\\&amp;\\</b\\> \\~\\~no\\~\\~ back\\\\slash |\n" +
		"| line break \\| --- \\| | \ufffd\\[31mred\ufffd |\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	b.Reset()
	NewMarkdownTable("A").Write(&b)
	if b.Len() > 0 {
		t.Errorf("a table without rows is %q", b.String())
	}
}

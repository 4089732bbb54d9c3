// Package mcp is the MCP server of brokerctl on standard input and output. The tools are those of internal/mcp.
package mcp

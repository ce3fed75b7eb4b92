NULL
''
0
-1
1
2
9223372036854775807
-9223372036854775808
4294967296
1805025600000
1805025600
64060588800001
1e300
0.5
'0'
' '
x''
x'00ff'
CAST(x'ff' AS TEXT)
'"' || CAST(x'c328' AS TEXT) || '"'
'a' || char(0) || 'b'
char(10) || char(27) || '[2J'
char(8238) || 'txt'
replace(hex(zeroblob(200)), '0', 'x')
replace(hex(zeroblob(200000)), '0', '[')
'{"a": [1, null]}'
'#1'
'active'
'running'
'queued'
'@yearly'
'* * * * * *'
'1ms'
'2027-03-14T12:00:00Z'
'Europe/Rome'
'bystander'
